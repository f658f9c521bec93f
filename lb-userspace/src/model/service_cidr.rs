//! ServiceCIDRs: the networks that the cluster takes the addresses of Services from (KEP-1880).

use ipnet::IpNet;

use super::address;
use super::field::{Field, Noted, Report};
use super::object::Object;
use super::problem::Problem;

/// A ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its networks, in their order.
    pub networks: Vec<IpNet>,
}

impl ServiceCidr {
    /// Reads a ServiceCIDR. If its networks are wrong, those of `previous` hold.
    pub(crate) fn read(object: &Object, previous: Option<&Self>) -> (Option<Self>, Vec<Problem>) {
        let mut report = Report::new(object.key.to_string(), &object.origin);
        let root = Field::root(&object.tree);
        let spec = root.key("spec");
        let networks = match spec.fields(&mut report).and_then(|()| read_networks(&spec, &mut report)) {
            Ok(networks) => networks,
            Err(Noted) => previous.map(|previous| previous.networks.clone()).unwrap_or_default(),
        };
        (Some(Self { networks }), report.problems)
    }
}

fn read_networks(spec: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpNet>, Noted> {
    let list = spec.key("cidrs");
    let mut networks = Vec::new();
    for field in list.items(report)? {
        let network = field.text(report, address::NETWORK_ALLOWED)?.and_then(address::parse_network);
        // All addresses there are would be the end of all traffic.
        match network.filter(|network| network.prefix_len() > 0) {
            Some(network) => networks.push(network),
            None => {
                report.wrong(&field, NETWORK_ALLOWED);
                return Err(Noted);
            }
        }
    }
    Ok(networks)
}

const NETWORK_ALLOWED: &str = "must be a network such as 10.96.0.0/16, and not all addresses there are";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Kind, Origin};
    use super::*;

    fn read(spec: Value, previous: Option<&ServiceCidr>) -> (ServiceCidr, Vec<String>) {
        let json = json!({"metadata": {"name": "kubernetes"}, "spec": spec});
        let object = Object::identify(Kind::ServiceCidr, json.into(), Origin::default()).unwrap();
        let (read, problems) = ServiceCidr::read(&object, previous);
        (read.unwrap(), problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn networks_of_both_families_are_read() {
        let (read, problems) = read(json!({"cidrs": ["10.96.0.0/16", "2001:db8:96::/112"]}), None);
        assert_eq!(read.networks, ["10.96.0.0/16", "2001:db8:96::/112"].map(|text| text.parse::<IpNet>().unwrap()));
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn wrong_networks_are_told_of_and_the_last_ones_hold() {
        let (before, _) = read(json!({"cidrs": ["10.96.0.0/16"]}), None);
        for (spec, place) in [
            (json!({"cidrs": ["10.97.0.0/16", "10.96.0.0/99"]}), "spec.cidrs[1]"),
            (json!({"cidrs": ["0.0.0.0/0"]}), "spec.cidrs[0]"),
            (json!({"cidrs": ["::/0"]}), "spec.cidrs[0]"),
            (json!({"cidrs": [null]}), "spec.cidrs[0]"),
            (json!({"cidrs": [7]}), "spec.cidrs[0]"),
            (json!({"cidrs": "10.96.0.0/16"}), "spec.cidrs"),
            (json!(["10.96.0.0/16"]), "spec"),
        ] {
            let (after, problems) = read(spec.clone(), Some(&before));
            assert_eq!(after, before, "{spec}");
            assert!(problems.len() == 1 && problems[0].contains(place), "{spec}: {problems:?}");
            let (never, _) = read(spec, None);
            assert_eq!(never, ServiceCidr::default());
        }
        for nothing in [json!({}), json!({"cidrs": []}), json!({"cidrs": null}), json!(null)] {
            let (after, problems) = read(nothing.clone(), Some(&before));
            assert_eq!((after, problems.len()), (ServiceCidr::default(), 0), "{nothing}");
        }
    }
}
