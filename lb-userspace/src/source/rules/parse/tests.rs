//! Files in, rules and problems out.

use proptest::prelude::*;

use super::*;
use crate::model::Method;

/// Rules as one line each: `TCP 10.0.0.1:80 rr p360/32 ops hash-port; 10.1.0.1:8080 w1 x2 y1; 10.1.0.2:80 w1 -i`.
fn lines(services: &[RuleService]) -> Vec<String> {
    let line = |service: &RuleService| {
        let options = &service.options;
        let mut line = format!("{} {}", service.frontend, options.scheduler.name());
        if let Some(persistence) = options.persistence {
            line += &format!(" p{}/{}", persistence.timeout, persistence.netmask);
        }
        for (set, name) in
            [(options.one_packet, " ops"), (options.hash_port, " hash-port"), (options.hash_fallback, " hash-fallback")]
        {
            line += if set { name } else { "" };
        }
        for server in &service.servers {
            let address = std::net::SocketAddr::new(server.address, server.port);
            line += &format!("; {address} w{}", server.weight);
            if server.thresholds.upper > 0 {
                line += &format!(" x{} y{}", server.thresholds.upper, server.thresholds.lower);
            }
            if server.method != Method::Nat {
                line += &format!(" {}", server.method.option());
            }
        }
        line
    };
    services.iter().map(line).collect()
}

fn read_after(text: &str, before: &[RuleService]) -> Parsed {
    parse(&"rules".into(), text.as_bytes(), before)
}

fn read(text: &str) -> Parsed {
    read_after(text, &[])
}

fn problems(parsed: &Parsed) -> Vec<String> {
    parsed.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn what_ipvsadm_saves_is_read() {
    let parsed = read(
        "-A -t 10.0.0.1:80 -s wrr\n\
         -a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 3\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 0\n\
         -A -t [fd00::1]:443 -s sh -p 360 -M 64 -b sh-fallback,sh-port\n\
         -a -t [fd00::1]:443 -r [fd01::1]:8443 -m -w 1\n\
         -A -u 10.0.0.1:53 -s rr -o\n\
         -A --sctp-service 10.0.0.1:9 -s wlc -p 10 -M 255.255.255.0\n\
         -A -f 1 -s lblc\n\
         -a -f 1 -r 10.1.0.1:0 -m -w 1\n\
         -A -f 4294967295 -6 -s mh -b mh-port\n\
         -a -f 4294967295 -6 -r [fd01::1]:80 -m -w 2147483647\n\
         -A -f -1 -s rr\n\
         -a -f -1 -r 10.1.0.1:80 -m -w 1\n\
         -A -f -2147483648 -6 -s rr\n\
         -A -t [::0.1.0.2]:80 -s rr\n\
         -a -t [::0.1.0.2]:80 -r [::10.1.0.1]:80 -m -w 1\n",
    );
    assert_eq!(problems(&parsed), [""; 0]);
    assert!(parsed.whole);
    assert_eq!(
        lines(&parsed.services),
        [
            "TCP 10.0.0.1:80 wrr; 10.1.0.2:8080 w3; 10.1.0.1:8080 w0",
            "TCP [fd00::1]:443 sh p360/64 hash-port hash-fallback; [fd01::1]:8443 w1",
            "UDP 10.0.0.1:53 rr ops",
            "SCTP 10.0.0.1:9 wlc p10/24",
            "FWM 1 lblc; 10.1.0.1:0 w1",
            "FWM 4294967295 IPv6 mh hash-port; [fd01::1]:80 w2147483647",
            "FWM 4294967295 rr; 10.1.0.1:80 w1",
            "FWM 2147483648 IPv6 rr",
            "TCP [::1:2]:80 rr; [::a01:1]:80 w1",
        ]
    );
    assert_eq!(parsed.services[1].origin.to_string(), "rules:4");
}

#[test]
fn defaults_are_those_of_the_program_ipvsadm() {
    let parsed = read(
        "# a comment\n\n\
         ipvsadm -A -t 10.0.0.1:80\n\
         ipvsadm -a -t 10.0.0.1:80 -r 10.1.0.1 -m\n\
         ipvsadm -A -t 10.0.0.2 -p\n\
         ipvsadm -a -t 10.0.0.2 -r 10.1.0.1 -m -x 8 -y 2\n\
         --add-service --fwmark-service=3 --ipv6 --persistent\n\
         --add-server --fwmark-service 3 --ipv6 --real-server [fd01::1] --masquerading --weight=5\n\
         -A -t 10.0.0.0/8:80 -s dh\n",
    );
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(
        lines(&parsed.services),
        [
            "TCP 10.0.0.1:80 wlc; 10.1.0.1:80 w1",
            "TCP 10.0.0.2:0 wlc p360/32; 10.1.0.1:0 w1 x8 y2",
            "FWM 3 IPv6 wlc p360/128; [fd01::1]:0 w5",
            "TCP 10.0.0.0/8:80 dh",
        ]
    );
}

#[test]
fn servers_are_reached_by_what_is_said_and_at_the_services_port_if_they_get_its_packets() {
    let parsed = read(
        "-A -t 10.0.0.1:80\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1\n\
         -a -t 10.0.0.1:80 -r 10.1.0.2:8080 -g\n\
         -a -t 10.0.0.1:80 -r 10.1.0.3:8080 -i\n\
         -a -t 10.0.0.1:80 -r 10.1.0.4:80 -i -w 2 --tun-type ipip -x 3\n\
         -a -t 10.0.0.1:80 -r [fd01::1]:8080 --ipip\n\
         -a -t 10.0.0.1:80 -r 10.1.0.5:8080 --masquerading\n\
         -A -t [fd00::1]:80\n\
         -a -t [fd00::1]:80 -r 10.1.0.1:8080 -i\n\
         -a -t [fd00::1]:80 -r [fd01::1]:8080 --gatewaying\n\
         -A -f 1\n\
         -a -f 1 -r 10.1.0.1\n\
         -a -f 1 -r 10.1.0.2:8080 -g\n\
         -a -f 1 -r 10.1.0.3:8080 -i\n\
         -A -u 10.0.0.0/8:53\n\
         -a -u 10.0.0.0/8:53 -r 10.1.0.1:54 -i\n\
         -A -t 10.0.0.2 -p 5\n\
         -a -t 10.0.0.2 -r 10.1.0.1:54 -g\n\
         -A -t 10.0.0.3:80\n\
         -a -t 10.0.0.3:80 -r 10.1.0.1 -m\n\
         -e -t 10.0.0.3:80 -r 10.1.0.1:8080 -i -w 3\n\
         -a -t 10.0.0.3:80 -r 10.1.0.2 -m\n\
         -e -t 10.0.0.3:80 -r 10.1.0.2 -w 4\n\
         -a -t 10.0.0.3:80 -r 10.1.0.3 -i\n\
         -d -t 10.0.0.3:80 -r 10.1.0.3:80\n",
    );
    assert_eq!(problems(&parsed), [""; 0]);
    assert_eq!(
        lines(&parsed.services),
        [
            "TCP 10.0.0.1:80 wlc; 10.1.0.1:80 w1 -g; 10.1.0.2:80 w1 -g; 10.1.0.3:80 w1 -i; 10.1.0.4:80 w2 x3 y0 -i; \
             [fd01::1]:80 w1 -i; 10.1.0.5:8080 w1",
            "TCP [fd00::1]:80 wlc; 10.1.0.1:80 w1 -i; [fd01::1]:80 w1 -g",
            "FWM 1 wlc; 10.1.0.1:0 w1 -g; 10.1.0.2:8080 w1 -g; 10.1.0.3:8080 w1 -i",
            "UDP 10.0.0.0/8:53 wlc; 10.1.0.1:53 w1 -i",
            "TCP 10.0.0.2:0 wlc p5/32; 10.1.0.1:0 w1 -g",
            // As in ipvsadm, an edit says all anew.
            "TCP 10.0.0.3:80 wlc; 10.1.0.1:80 w3 -i; 10.1.0.2:80 w4 -g",
        ]
    );
}

#[test]
fn commands_are_done_in_their_order() {
    let parsed = read(
        "-A -t 10.0.0.9:80 -s rr\n\
         -C\n\
         -A -t 10.0.0.1:80 -s rr -p 5\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1 -m\n\
         -a -t 10.0.0.1:80 -r 10.1.0.2 -m -w 5\n\
         -a -t 10.0.0.1:80 -r 10.1.0.3 -m\n\
         -e -t 10.0.0.1:80 -r 10.1.0.3 -m -w 9 -x 4\n\
         -d -t 10.0.0.1:80 -r 10.1.0.1\n\
         -a -t 10.0.0.1:80 -r 10.1.0.1 -m -w 7\n\
         -E -t 10.0.0.1:80 -s lc\n\
         -A -u 10.0.0.1:53\n\
         -D -u 10.0.0.1:53\n",
    );
    assert_eq!(problems(&parsed), [""; 0]);
    // -e keeps the place, -d and -a do not; -E forgets what it does not repeat.
    assert_eq!(lines(&parsed.services), ["TCP 10.0.0.1:80 lc; 10.1.0.2:80 w5; 10.1.0.3:80 w9 x4 y0; 10.1.0.1:80 w7"]);
}

#[test]
fn each_wrong_line_is_told_with_its_place_and_what_to_do() {
    for (line, expected) in [
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -g -m", "rules:3: rule TCP 10.0.0.1:80: -m: packets reach a server in one way"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i -g", "-i: packets reach a server in one way, and there is -g already"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gue --tun-port 6", "--tun-type: \"gue\": is not supported"),
        (
            "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre",
            "--tun-type: \"gre\": is not supported: tunnels are of type",
        ),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type vxlan", "--tun-type: \"vxlan\": must be ipip"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-csum", "--tun-csum: is for tunnels of type gue and gre"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 -m --tun-nocsum", "--tun-nocsum: is for tunnels: state -i"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1 --tun-type ipip", "--tun-type: is for tunnels: state -i"),
        ("-a -t 10.0.0.1:80 -r [fd00::1] -g", "-r: \"[fd00::1]\": must be an IPv4 address"),
        ("-e -t 10.0.0.1:80 -r 10.1.0.1:8080 -g", "-r: \"10.1.0.1:80\": is no server of this service"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -w -1", "-w: \"-1\": must be a number from 0 to 2147483647"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -w 2147483648", "-w: \"2147483648\": must be a number"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -w 1k", "-w: \"1k\""),
        (
            "-a -t 10.0.0.1:80 -r 10.1.0.9 -m -x 1 -y 2",
            "-y: \"2\": must not be higher than the upper threshold (-x), which is 1",
        ),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -y 2", "-y: \"2\": must not be higher"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -x 99999999999", "-x: \"99999999999\": must be a number of connections"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m", "-r: \"10.1.0.1:8080\": is a server of this service already"),
        ("-a -t 10.0.0.1:80 -r web -m", "-r: \"web\": must be a number address"),
        ("-a -t 10.0.0.1:80 -r [fd00::1]:80 -m", "must be an IPv4 address, as the service's is; in a tunnel"),
        ("-a -t 10.0.0.1:80 -r 10.0.0.0/8 -m", "-r: \"10.0.0.0/8\": a real server is one address"),
        ("-a -t 10.0.0.1:80 -m", "-r: missing"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.9 -m -s rr", "-s: is no option of -a"),
        ("-a -t 10.0.0.1:81 -r 10.1.0.1 -m", "rule TCP 10.0.0.1:81: there is no such service yet"),
        ("-e -t 10.0.0.1:80 -r 10.1.0.9 -m", "-r: \"10.1.0.9:80\": is no server of this service"),
        ("-d -t 10.0.0.1:80 -r 10.1.0.9", "-r: \"10.1.0.9:80\": is no server of this service"),
        ("-d -t 10.0.0.1:80 -r 10.1.0.1:8080 -w 1", "-w: is no option of -d"),
        ("-D -t 10.0.0.1:81", "there is no such service yet"),
        ("-E -u 10.0.0.1:80", "there is no such service yet"),
        ("-A -t 10.0.0.1:80", "the service exists already, from line 1"),
        ("-A -t 10.0.0.2:0", "-p: TCP 10.0.0.2:0: port 0 stands for every port, which needs -p"),
        ("-A -t 10.0.0.2:80 -o", "-o: is for UDP services"),
        ("-A -t 10.0.0.2:80 -s fastest", "-s: \"fastest\": must be one of rr, wrr, lc, wlc"),
        ("-A -t 10.0.0.2:80 -p 0", "-p: \"0\": must be a number of seconds from 1 to 2678400"),
        ("-A -t 10.0.0.2:80 -p 2678401", "-p: \"2678401\""),
        ("-A -t 10.0.0.2:80 -p 5 -M 255.0.255.0", "-M: \"255.0.255.0\": must be a netmask"),
        ("-A -t 10.0.0.2:80 -p 5 -M 0.0.0.0", "-M: \"0.0.0.0\": must be a netmask"),
        ("-A -t [fd00::2]:80 -p 5 -M 0", "-M: \"0\": must be a prefix length from 1 to 128"),
        ("-A -t 10.0.0.2:80 --pe sip", "--pe: \"sip\": there are no persistence engines"),
        ("-A -t 10.0.0.2:80 -s rr -b sh-port", "-b: \"sh-port\": must be flag-1, flag-2"),
        ("-A -t 10.0.0.2:80 -s sh -b sh-port,flag-3", "-b: \"sh-port,flag-3\": must be sh-fallback, sh-port"),
        ("-A -t 10.0.0.2:80 -w 1", "-w: is no option of -A"),
        ("-A -t 10.0.0.2:80 -u 10.0.0.2:80", "-u: a line has one service, and there is -t already"),
        ("-A -t 10.0.0.2:80 -s rr -s wrr", "-s: stands twice"),
        ("-A -s rr", "names no service"),
        ("-A -t www:80", "-t: \"www:80\": must be a number address"),
        ("-A -t 10.0.0.2:80 -6", "-6: is for firewall marks"),
        ("-A -f 0", "-f: \"0\": a firewall mark must be"),
        ("-A -f 0x10", "-f: \"0x10\": a firewall mark must be"),
        ("-A -f 4294967296", "-f: \"4294967296\": a firewall mark must be"),
        ("-A -f -2147483649", "-f: \"-2147483649\": a firewall mark must be"),
        ("-A -f -0", "-f: \"-0\": a firewall mark must be"),
        ("-A -f -+1", "-f: \"-+1\": a firewall mark must be"),
        ("-A -a -t 10.0.0.2:80", "-a: a line has one command, and there is -A already"),
        ("-t 10.0.0.2:80", "has no command"),
        ("-C -t 10.0.0.2:80", "-t: is no option of -C"),
        ("-Z", "-Z: counters cannot be zeroed"),
        ("-L -n", "-L: lists nothing"),
        ("-S", "-S: saves nothing"),
        ("-R", "-R: a file of rules restores no other"),
        ("--set 1 2 3", "is no option"),
        ("--start-daemon master", "is no option"),
        ("-h", "-h: is no rule"),
        ("-A -t", "-t: needs a value"),
        ("hello", "\"hello\" is no option"),
    ] {
        let good = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1\n";
        let parsed = read(&format!("{good}{line}\n-A -u 10.0.0.1:53 -s rr\n"));
        assert!(!parsed.whole, "{line}");
        assert_eq!(parsed.problems.len(), 1, "{line}: {:?}", problems(&parsed));
        let problem = problems(&parsed).remove(0);
        assert!(problem.starts_with("rules:3: rule"), "{problem}");
        assert!(problem.contains(expected), "{line}: {problem}");
        // The lines around it hold.
        assert_eq!(lines(&parsed.services), ["TCP 10.0.0.1:80 rr; 10.1.0.1:8080 w1", "UDP 10.0.0.1:53 rr"], "{line}");
    }
}

const BEFORE: &str = "-A -t 10.0.0.1:80 -s rr\n\
                      -a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n\
                      -a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 2\n\
                      -A -u 10.0.0.1:53 -s rr\n";

#[test]
fn what_a_wrong_file_lacks_stays_and_what_it_says_holds() {
    let before = read(BEFORE).services;
    let parsed = read_after(
        "-A -t 10.0.0.1:80 -s fastest\n\
         -a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 5\n\
         -a -t 10.0.0.1:80 -r 10.1.0.3:80 -m -w x\n\
         -a -t 10.0.0.1:80 -r 10.1.0.4:80 -m -w 4\n",
        &before,
    );
    assert_eq!(parsed.problems.len(), 2, "{:?}", problems(&parsed));
    assert_eq!(
        lines(&parsed.services),
        ["TCP 10.0.0.1:80 rr; 10.1.0.1:80 w1; 10.1.0.2:80 w5; 10.1.0.4:80 w4", "UDP 10.0.0.1:53 rr"]
    );
    // Once it is right, it says all.
    let parsed = read_after("-A -t 10.0.0.1:80 -s lc\n", &parsed.services);
    assert_eq!(lines(&parsed.services), ["TCP 10.0.0.1:80 lc"]);
}

#[test]
fn a_service_whose_line_is_wrong_from_the_start_is_left_out_with_one_problem() {
    let parsed = read("-A -t 10.0.0.1:80 -s fastest\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m\n-A -f 1\n");
    assert_eq!(parsed.problems.len(), 1);
    assert_eq!(lines(&parsed.services), ["FWM 1 wlc"]);
}

#[test]
fn a_half_written_file_takes_nothing_away() {
    let before = read(BEFORE);
    for end in 0..BEFORE.len() {
        let half = read_after(&BEFORE[..end], &before.services);
        // What is cut at the end of a line cannot be told from a file that is meant so.
        if end > 0 && !BEFORE[..end].ends_with('\n') {
            assert!(!half.whole, "{:?}", &BEFORE[..end]);
            assert_eq!(sorted(&half.services), sorted(&before.services), "{:?}", &BEFORE[..end]);
        }
    }
}

/// The same whatever the order of services and servers.
fn sorted(services: &[RuleService]) -> Vec<String> {
    let mut services = services.to_vec();
    services.sort_by_key(|service| service.frontend);
    services.iter_mut().for_each(|service| service.servers.sort_by_key(|server| (server.address, server.port)));
    lines(&services)
}

#[test]
fn a_file_that_is_all_wrong_is_told_of_shortly() {
    let parsed = read(&"what\n".repeat(100_000));
    assert_eq!(parsed.problems.len(), 21);
    assert!(parsed.problems[20].message.ends_with("are not listed"));
    let parsed = parse(&"rules".into(), b"-A -t 10.0.0.1:80\n\xff\xfe\n", &[]);
    assert_eq!(parsed.services.len(), 1);
    assert!(problems(&parsed)[0].starts_with("rules:2: rule: \""), "{:?}", problems(&parsed));
    let long = format!("-A -t {}\n", "9".repeat(1 << 20));
    assert!(problems(&read(&long))[0].len() < 400);
}

#[test]
fn a_byte_order_mark_and_carriage_returns_are_no_problem() {
    let parsed = read("\u{feff}-A -t 10.0.0.1:80\r\n");
    assert_eq!((lines(&parsed.services).len(), parsed.whole), (1, true));
}

/// A valid file of some length.
fn valid() -> impl Strategy<Value = String> {
    prop::collection::vec((0_u8..4, 0_u8..4, 0_u32..10), 0..12).prop_map(|rows| {
        let mut text = String::new();
        for (service, server, weight) in rows {
            text += &format!("-A -t 10.0.0.{}:80 -s rr -p 10\n", service + 1);
            text += &format!("-a -t 10.0.0.{}:80 -r 10.1.0.{}:80 -m -w {weight} -x 9\n", service + 1, server + 1);
        }
        text
    })
}

proptest! {
    #[test]
    fn any_bytes_end_in_rules_or_problems(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let parsed = parse(&"rules".into(), &bytes, &[]);
        prop_assert_eq!(parsed.whole, parsed.problems.is_empty());
    }

    #[test]
    fn any_words_end_in_rules_or_problems(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "-A", "-a", "-E", "-e", "-D", "-d", "-C", "-t", "-u", "-f", "-6", "-r", "-m", "-g", "-i", "--tun-type", "ipip", "-w", "-x", "-y", "-p",
                "-M", "-b", "-s", "-o", "--pe", "\n", "\n", "10.0.0.1:80", "10.0.0.1", "[fd00::1]:80", "[", "]", "/", ":",
                "0", "1", "rr", "sh", "sh-port", "255.255.255.0", "#", "=", "-", "--", "10.0.0.0/8:1", "\u{e9}",
            ]),
            0..60,
        ),
        joined in any::<bool>(),
    ) {
        let parsed = read(&words.join(if joined { "" } else { " " }));
        prop_assert!(parsed.problems.len() <= TOLD_PER_FILE + 1);
    }

    #[test]
    fn a_mutated_file_loses_nothing_while_it_is_wrong(
        text in valid(), place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let before = read(&text).services;
        let mut bytes = text.into_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let place = place.index(bytes.len());
        if cut { bytes.truncate(place); } else { bytes[place] = byte; }
        let parsed = parse(&"rules".into(), &bytes, &before);
        if !parsed.whole {
            for service in &before {
                let now = parsed.services.iter().find(|now| now.frontend == service.frontend);
                prop_assert!(now.is_some());
                for server in &service.servers {
                    let still = now.into_iter().flat_map(|now| &now.servers);
                    prop_assert!(still.into_iter().any(|still| (still.address, still.port) == (server.address, server.port)));
                }
            }
        }
    }
}
