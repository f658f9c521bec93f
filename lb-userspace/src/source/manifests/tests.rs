//! Files that come, change, break and go. Nothing waits for a fixed time: each step waits for what it expects.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

use super::Manifests;
use crate::model::Model;
use crate::plan::{Defaults, Node, plan};
use crate::source::{Update, channel};

const DEADLINE: Duration = Duration::from_secs(20);

fn service(name: &str, last: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: 10.96.0.{last}\n  ports: [{{port: 80}}]\n"
    )
}

/// A running source and the model that it feeds.
struct Watched {
    model: Model,
    updates: Receiver<Update>,
}

impl Watched {
    /// Polls slowly, so that what is seen in time was seen by inotify.
    fn start(path: &Path) -> Self {
        Self::polling(path, Duration::from_secs(600))
    }

    fn polling(path: &Path, poll: Duration) -> Self {
        let (sender, updates) = channel();
        tokio::spawn(Manifests::new(path).poll_every(poll).run(sender));
        Self { model: Model::new(), updates }
    }

    /// Feeds the model until it has exactly these services and this many problems.
    async fn expect(&mut self, services: &[&str], problems: usize) {
        let reached = async {
            while (self.services(), self.model.problems().len()) != (owned(services), problems) {
                let update = self.updates.recv().await.expect("the source runs");
                self.model.change(update.source, update.change);
            }
        };
        if tokio::time::timeout(DEADLINE, reached).await.is_err() {
            panic!("wanted {services:?} and {problems}; have {:?} and {:?}", self.services(), self.model.problems());
        }
    }

    fn services(&self) -> Vec<String> {
        self.model.services().map(|service| service.name.to_string()).collect()
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn write(folder: &TempDir, name: &str, text: impl AsRef<[u8]>) {
    fs::write(folder.path().join(name), text).unwrap();
}

#[tokio::test]
async fn files_that_come_change_and_go_are_followed() {
    let folder = TempDir::new().unwrap();
    let mut watched = Watched::start(folder.path());
    watched.expect(&[], 0).await;
    write(&folder, "a.yaml", service("a", 1));
    watched.expect(&["a"], 0).await;
    write(
        &folder,
        "b.json",
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}, "spec": {"clusterIP": "None"}}"#,
    );
    write(&folder, "c.yml", service("c", 3));
    write(&folder, "d.txt", service("d", 4));
    write(&folder, ".e.yaml", service("e", 5));
    fs::create_dir(folder.path().join("f.yaml")).unwrap();
    watched.expect(&["a", "b", "c"], 0).await;
    write(&folder, "a.yaml", format!("{}---\n{}", service("a", 1), service("a2", 2)));
    watched.expect(&["a", "a2", "b", "c"], 0).await;
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    watched.expect(&["b", "c"], 0).await;
    assert!(watched.model.is_complete());
}

#[tokio::test]
async fn a_file_is_followed_through_atomic_renames() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("web.conf");
    fs::write(&path, service("a", 1)).unwrap();
    let mut watched = Watched::start(&path);
    watched.expect(&["a"], 0).await;
    for name in ["b", "c"] {
        write(&folder, "new", service(name, 1));
        fs::rename(folder.path().join("new"), &path).unwrap();
        watched.expect(&[name], 0).await;
    }
}

#[tokio::test]
async fn a_config_map_volume_is_followed_when_its_link_is_swapped() {
    let folder = TempDir::new().unwrap();
    let version = |number: u8, name: &str| {
        let data = format!("..version{number}");
        fs::create_dir(folder.path().join(&data)).unwrap();
        write(&folder, &format!("{data}/web.yaml"), service(name, 1));
        symlink(&data, folder.path().join("..data_tmp")).unwrap();
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    };
    version(1, "a");
    symlink("..data/web.yaml", folder.path().join("web.yaml")).unwrap();
    let mut watched = Watched::start(folder.path());
    watched.expect(&["a"], 0).await;
    version(2, "b");
    fs::remove_dir_all(folder.path().join("..version1")).unwrap();
    watched.expect(&["b"], 0).await;
}

#[tokio::test]
async fn what_inotify_does_not_see_is_seen_by_looking() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&elsewhere, "real", service("a", 1));
    symlink(elsewhere.path().join("real"), folder.path().join("link.yaml")).unwrap();
    let mut watched = Watched::polling(folder.path(), Duration::from_millis(20));
    watched.expect(&["a"], 0).await;
    write(&elsewhere, "real", service("other", 1));
    watched.expect(&["other"], 0).await;
}

#[tokio::test]
async fn a_folder_that_is_taken_away_and_put_back_takes_nothing_away() {
    let parent = TempDir::new().unwrap();
    let (path, aside) = (parent.path().join("manifests"), parent.path().join("aside"));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), service("a", 1)).unwrap();
    let mut watched = Watched::polling(&path, Duration::from_millis(20));
    watched.expect(&["a"], 0).await;
    fs::rename(&path, &aside).unwrap();
    watched.expect(&["a"], 1).await;
    assert!(watched.model.problems()[0].to_string().contains("what it held last stays"));
    fs::rename(&aside, &path).unwrap();
    watched.expect(&["a"], 0).await;
    fs::write(path.join("b.yaml"), service("b", 2)).unwrap();
    watched.expect(&["a", "b"], 0).await;
}

#[tokio::test]
async fn nothing_is_complete_before_the_path_can_be_read() {
    let parent = TempDir::new().unwrap();
    let path = parent.path().join("later.yaml");
    assert!(Manifests::new(&path).check().is_err());
    let mut watched = Watched::polling(&path, Duration::from_millis(20));
    tokio::task::yield_now().await;
    assert!(watched.updates.try_recv().is_err());
    fs::write(&path, service("a", 1)).unwrap();
    watched.expect(&["a"], 0).await;
    assert!(Manifests::new(&path).check().is_ok());
}

#[tokio::test]
async fn a_file_that_breaks_keeps_what_it_held_and_everything_else_works() {
    let folder = TempDir::new().unwrap();
    write(&folder, "a.yaml", format!("{}---\n{}", service("a", 1), service("a2", 2)));
    write(&folder, "b.yaml", service("b", 3));
    let mut watched = Watched::start(folder.path());
    watched.expect(&["a", "a2", "b"], 0).await;
    for broken in [
        "apiVersion: v1\nkind: Serv".as_bytes(),
        b"apiVersion: v1\nkind: Service\nmetadata: {name: a\n",
        b"\xff\xfe\x00",
        b"",
        &vec![b'\x07'; 10 << 20],
    ] {
        write(&folder, "a.yaml", broken);
        watched.expect(&["a", "a2", "b"], 1).await;
        assert!(watched.model.problems()[0].location.as_deref().unwrap().contains("a.yaml"));
        write(&folder, "b.yaml", service("b2", 3));
        watched.expect(&["a", "a2", "b2"], 1).await;
        write(&folder, "b.yaml", service("b", 3));
        watched.expect(&["a", "a2", "b"], 1).await;
        assert!(!watched.model.has_gaps());
    }
    write(&folder, "a.yaml", format!("a: [\n---\n{}", service("a3", 4)));
    watched.expect(&["a", "a2", "a3", "b"], 1).await;
    write(&folder, "a.yaml", service("a2", 2));
    watched.expect(&["a2", "b"], 0).await;
    write(&folder, "a.yaml", "---\n");
    watched.expect(&["b"], 0).await;
}

#[tokio::test]
async fn a_file_that_never_could_be_read_is_a_gap_and_the_rest_is_served() {
    let folder = TempDir::new().unwrap();
    write(&folder, "a.yaml", format!("a: [\n---\n{}", service("a", 1)));
    write(&folder, "b.yaml", service("b", 2));
    let mut watched = Watched::start(folder.path());
    watched.expect(&["a", "b"], 1).await;
    assert!(watched.model.is_complete() && watched.model.has_gaps());
    write(&folder, "a.yaml", service("a", 1));
    watched.expect(&["a", "b"], 0).await;
    assert!(!watched.model.has_gaps());
}

#[test]
fn files_that_are_too_large_or_no_files_are_one_problem_each() {
    let folder = TempDir::new().unwrap();
    write(&folder, "b.yaml", service("b", 2));
    fs::File::create(folder.path().join("large.yaml"))
        .unwrap()
        .set_len(crate::source::file::MAX_FILE_BYTES + 1)
        .unwrap();
    nix::unistd::mkfifo(&folder.path().join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("nowhere", folder.path().join("link.yaml")).unwrap();
    let list = Manifests::new(folder.path()).read_once().unwrap();
    assert_eq!(list.objects.len(), 1);
    let texts: Vec<String> = list.problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[1].contains("link.yaml: manifest: cannot be read: No such file"), "{texts:?}");
    assert!(texts[0].contains("large.yaml: manifest: is larger than 64 MiB"), "{texts:?}");
    assert!(texts[2].contains("pipe.yaml: manifest: must be a regular file"), "{texts:?}");
}

#[test]
fn the_examples_are_what_the_demo_needs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/manifests");
    let list = Manifests::new(path).read_once().unwrap();
    let mut model = Model::new();
    model.replace(crate::model::SourceId::MANIFESTS, list);
    assert_eq!(model.problems(), []);
    let plan = plan(&model, &Node::named("n0"), &Defaults::default());
    assert_eq!((plan.services.len(), plan.problems), (4 * lb_common::scheduler::Scheduler::ALL.len(), vec![]));
    for (frontend, service) in &plan.services {
        let scheduler = service.origin.trim_start_matches("demo/").split(':').next();
        assert_eq!(Some(service.scheduler.name()), scheduler, "{frontend:?}");
        assert_eq!(service.destinations.iter().map(|server| server.weight).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }
}
