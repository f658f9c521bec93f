//! Rules of every kind, as `ipvsadm` is told them.

use lb_common::scheduler::Scheduler;

/// Every kind but the schedulers: services with what they may have, then their servers.
const KINDS: &str = "
-A -t 10.96.1.1:80
-a -t 10.96.1.1:80 -r 10.20.0.1 -m
-a -t 10.96.1.1:80 -r 10.20.0.1:8080 -m -w 0
-a -t 10.96.1.1:80 -r 10.20.0.2:8080 -m -w 65535
-a -t 10.96.1.1:80 -r 192.168.0.1:65535 -m -w 2147483647
-A -u 10.96.1.1:80 -s rr
-a -u 10.96.1.1:80 -r 10.20.0.1:80 -m -w 1
-A -u 10.96.1.1:53 -s rr -o
-a -u 10.96.1.1:53 -r 10.20.0.1:53 -m -w 1
-A -u 10.96.1.2:53 -s rr -p 10 -o
-A --sctp-service 10.96.1.1:36412 -s rr
-a --sctp-service 10.96.1.1:36412 -r 10.20.0.1:36412 -m -w 1
-A -t 192.168.1.1:80 -s rr
-A -t 10.96.1.1:443 -s wlc -p
-a -t 10.96.1.1:443 -r 10.20.0.1:443 -m -w 1
-A -t 10.96.1.2:443 -s wlc -p 2678400 -M 255.255.255.0
-A -t 10.96.1.3:443 -s wlc -p 1 -M 255.0.0.0
-A -t 10.96.1.4:443 -s wlc -p 600 -M 255.255.255.255
-A -t 10.96.1.1:0 -s wlc -p 600
-a -t 10.96.1.1:0 -r 10.20.0.1:0 -m -w 1
-A -u 10.96.1.1:0 -s wlc -p 600 -M 255.255.255.128
-a -u 10.96.1.1:0 -r 10.20.0.2 -m -w 2
-A -t [fd00:96::1]:80 -s rr
-a -t [fd00:96::1]:80 -r [fd20::1]:8080 -m -w 1
-a -t [fd00:96::1]:80 -r [fd20::1:0:0:2]:8080 -m -w 2
-a -t [fd00:96::1]:80 -r [2001:db8:1:2:3:4:5:6]:8080 -m -w 3
-A -u [fd00:96::1]:53 -s rr -o
-A --sctp-service [fd00:96::1]:36412 -s wlc -p 600 -M 64
-A -t [fd00:96::2]:443 -s wlc -p 600 -M 128
-A -t [fd00:96::1]:0 -s wlc -p
-a -t [fd00:96::1]:0 -r [fd20::1]:0 -m -w 1
-A -t [::1:2]:80 -s rr
-a -t [::1:2]:80 -r [::10.20.0.1]:80 -m -w 1
-A -f 7 -s rr
-a -f 7 -r 10.20.0.1:0 -m -w 1
-a -f 7 -r 10.20.0.1:8080 -m -w 2
-A -f 8 -6 -s rr
-a -f 8 -6 -r [fd20::1]:0 -m -w 1
-A -f 9 -s rr
-A -f 9 -6 -s rr -p 300 -M 64
-A -f 10 -s rr -p 300 -M 255.255.0.0 -o
-A -f 2147483647 -s rr
-A -t 10.96.1.1:1001 -s sh -b sh-port
-A -t 10.96.1.1:1002 -s sh -b sh-fallback
-A -t 10.96.1.1:1003 -s sh -b sh-port,sh-fallback -p 60
-A -t 10.96.1.1:1101 -s mh -b mh-port
-A -t 10.96.1.1:1102 -s mh -b mh-fallback
-A -t 10.96.1.1:1103 -s mh -b mh-fallback,mh-port -p 60
-A -t 10.96.3.1:80 -s rr
-a -t 10.96.3.1:80 -r 10.20.0.1
-a -t 10.96.3.1:80 -r 10.20.0.2:8080 -g -w 2
-a -t 10.96.3.1:80 -r 10.20.0.3:8080 -i -w 3
-a -t 10.96.3.1:80 -r 10.20.0.4:80 -i --tun-type ipip -w 0
-a -t 10.96.3.1:80 -r [fd20::1]:8080 -i -w 5
-a -t 10.96.3.1:80 -r 10.20.0.5:8080 -m -w 1
-A -u 10.96.3.1:53 -s wlc -o
-a -u 10.96.3.1:53 -r 10.20.0.1:53 -g -w 1
-a -u 10.96.3.1:53 -r 10.20.0.2:53 -i -w 1
-A -t 10.96.3.1:0 -s wlc -p 60
-a -t 10.96.3.1:0 -r 10.20.0.1:8080 -g -w 1
-a -t 10.96.3.1:0 -r 10.20.0.2 -i -w 1
-A -t [fd00:96::3]:80 -s rr
-a -t [fd00:96::3]:80 -r [fd20::1]:8080 -w 1
-a -t [fd00:96::3]:80 -r [fd20::2]:8080 -i -w 2
-a -t [fd00:96::3]:80 -r 10.20.0.1 -i -w 3
-A -f 11 -s rr
-a -f 11 -r 10.20.0.1 -w 1
-a -f 11 -r 10.20.0.2:8080 -g -w 2
-a -f 11 -r 10.20.0.3:8080 -i -w 3
-A -f 11 -6 -s rr
-a -f 11 -6 -r [fd20::1]:8080 -i -w 1
-a -f 11 -6 -r 10.20.0.1:8080 -i -w 2
-A -t 10.96.1.1:1201 -s rr -b flag-1
-A -t 10.96.1.1:1202 -s wlc -b flag-1,flag-2
";

/// Servers that a third of all addresses lies between, as they are added to three services: such ones have no order in
/// `ipvsadm`, and what it prints depends on how it sorts, and on the list that IPVS has.
const THIRDS: [[&str; 5]; 3] = [
    ["10.0.0.1", "90.0.0.1", "180.0.0.1", "200.0.0.1", "100.0.0.1"],
    ["180.0.0.1", "10.0.0.1", "200.0.0.1", "100.0.0.1", "90.0.0.1"],
    ["90.0.0.1", "100.0.0.1", "200.0.0.1", "10.0.0.1", "180.0.0.1"],
];

/// All lines, with each of these schedulers.
pub(super) fn lines(schedulers: &[Scheduler]) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, scheduler) in (1..).zip(schedulers) {
        let name = format!("-t 10.96.0.{number}:80");
        lines.push(format!("-A {name} -s {}", scheduler.name()));
        lines.extend([2, 1, 3].map(|server| format!("-a {name} -r 10.20.0.{server}:8080 -m -w {server}")));
    }
    lines.extend(KINDS.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    lines
}

/// Rules with servers in lists of another order than `ipvsadm` has.
pub(super) fn lists() -> String {
    let mut rules = String::new();
    for (number, servers) in (1..).zip(THIRDS) {
        let name = format!("-t 10.96.2.{number}:80");
        rules.push_str(&format!("-A {name} -s rr\n"));
        rules.extend(servers.map(|server| format!("-a {name} -r {server}:80 -m -w 1\n")));
    }
    rules
}
