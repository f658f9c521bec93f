//! What a Service says of its connections beside the scheduler: session affinity, one-packet scheduling, thresholds, and who
//! answers.

use lb_common::address::Protocol;

use super::field::{Field, Noted, Report};
use super::frontend::{Persistence, Thresholds};

/// Annotation of a Service with session affinity: how much of a client's address counts, `24`, `255.255.255.0` or, with
/// IPv6's after a comma, `24,64`.
pub const PERSISTENCE_NETMASK_ANNOTATION: &str = "bpvs.io/persistence-netmask";
/// Annotation of a Service: `true` schedules each datagram of its UDP ports for itself.
pub const ONE_PACKET_ANNOTATION: &str = "bpvs.io/one-packet";
/// Annotation of a Service: how many connections each of its endpoints takes, `UPPER` or `UPPER,LOWER`.
pub const THRESHOLDS_ANNOTATION: &str = "bpvs.io/thresholds";

/// Annotation of a Service: `dsr` has endpoints of other nodes answer clients past this node, `nat` through it.
pub const FORWARDING_ANNOTATION: &str = "bpvs.io/forwarding";

/// Kubernetes' default of `timeoutSeconds`, and its highest value.
const DEFAULT_TIMEOUT: u32 = 10_800;
const LONGEST_TIMEOUT: u32 = 86_400;

/// What a Service says of its connections. The default is what one that says nothing means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// `sessionAffinity: ClientIP`, in seconds.
    pub timeout: Option<u32>,
    /// Bits of a client's address that count, if not all do.
    pub netmask: Netmask,
    /// Datagrams are scheduled one by one.
    pub one_packet: bool,
    /// Of every endpoint.
    pub thresholds: Thresholds,
    /// Endpoints of other nodes answer clients themselves.
    pub direct_return: bool,
}

/// Netmasks of both families; none for all bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Netmask {
    /// 1 to 32.
    pub v4: Option<u8>,
    /// 1 to 128.
    pub v6: Option<u8>,
}

impl Affinity {
    /// Persistence of the virtual services of one family.
    pub fn persistence(&self, v4: bool) -> Option<Persistence> {
        let netmask = if v4 { self.netmask.v4.unwrap_or(32) } else { self.netmask.v6.unwrap_or(128) };
        self.timeout.map(|timeout| Persistence { timeout, netmask })
    }

    /// Whether packets of a port are scheduled one by one.
    pub fn one_packet(&self, protocol: Protocol) -> bool {
        self.one_packet && protocol == Protocol::Udp
    }

    /// Reads a Service's. What is wrong keeps its value of `previous`, or is default.
    pub(crate) fn read(
        spec: &Field<'_>,
        annotations: Option<&Field<'_>>,
        previous: Option<&Self>,
        report: &mut Report<'_>,
    ) -> Self {
        let before = previous.copied().unwrap_or_default();
        let timeout = read_timeout(spec, report).unwrap_or(before.timeout);
        let Some(annotations) = annotations else { return Self { timeout, ..before } };
        let netmask = annotations.key(PERSISTENCE_NETMASK_ANNOTATION);
        let one_packet = annotations.key(ONE_PACKET_ANNOTATION);
        let thresholds = annotations.key(THRESHOLDS_ANNOTATION);
        let forwarding = annotations.key(FORWARDING_ANNOTATION);
        Self {
            timeout,
            netmask: read_netmask(&netmask, timeout, report).unwrap_or(before.netmask),
            one_packet: read_one_packet(&one_packet, report).unwrap_or(before.one_packet),
            thresholds: read_thresholds(&thresholds, report).unwrap_or(before.thresholds),
            direct_return: read_forwarding(&forwarding, report).unwrap_or(before.direct_return),
        }
    }
}

fn read_timeout(spec: &Field<'_>, report: &mut Report<'_>) -> Result<Option<u32>, Noted> {
    let allowed = "must be ClientIP or None";
    let field = spec.key("sessionAffinity");
    match field.text(report, allowed)? {
        None | Some("None" | "") => return Ok(None),
        Some("ClientIP") => {}
        Some(_) => {
            report.wrong(&field, allowed);
            return Err(Noted);
        }
    }
    let config = spec.key("sessionAffinityConfig");
    let client = config.key("clientIP");
    for map in [&config, &client] {
        if map.stated() && !map.null() && !map.is_map(report) {
            return Err(Noted);
        }
    }
    let timeout = client.key("timeoutSeconds").number(report, 1..=LONGEST_TIMEOUT)?;
    Ok(Some(timeout.unwrap_or(DEFAULT_TIMEOUT)))
}

fn read_netmask(field: &Field<'_>, timeout: Option<u32>, report: &mut Report<'_>) -> Result<Netmask, Noted> {
    let allowed = "must be, in quotes, IPv4's netmask, 1 to 32 bits as in \"24\" or \"255.255.255.0\", and perhaps after a \
                   comma IPv6's, 1 to 128 bits, as in \"24,64\"";
    let Some(text) = field.text(report, allowed)? else { return Ok(Netmask::default()) };
    let (v4, v6) = text.split_once(',').map_or((text, None), |(v4, v6)| (v4, Some(v6)));
    let v6 = v6.map(|v6| digits(v6, 1..=128));
    let (Some(v4), None | Some(Some(_))) = (parse_v4(v4.trim()), v6) else {
        report.wrong(field, allowed);
        return Err(Noted);
    };
    if timeout.is_none() {
        report.wrong(field, "has no effect without spec.sessionAffinity: ClientIP");
    }
    Ok(Netmask { v4: Some(v4), v6: v6.flatten().map(|bits| bits as u8) })
}

fn parse_v4(text: &str) -> Option<u8> {
    match text.parse::<std::net::Ipv4Addr>() {
        Ok(mask) => {
            let (bits, length) = (mask.to_bits(), mask.to_bits().leading_ones());
            (length > 0 && length == bits.count_ones()).then_some(length as u8)
        }
        Err(_) => digits(text, 1..=32).map(|bits| bits as u8),
    }
}

fn read_one_packet(field: &Field<'_>, report: &mut Report<'_>) -> Result<bool, Noted> {
    let allowed = "must be \"true\" or \"false\", in quotes";
    match field.text(report, allowed)?.map(str::trim) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => {
            report.wrong(field, allowed);
            Err(Noted)
        }
    }
}

fn read_thresholds(field: &Field<'_>, report: &mut Report<'_>) -> Result<Thresholds, Noted> {
    let allowed = "must be, in quotes, UPPER or UPPER,LOWER: numbers of connections from 0 to 2147483647, LOWER not above \
                   UPPER, 0 for none";
    let Some(text) = field.text(report, allowed)? else { return Ok(Thresholds::default()) };
    let (upper, lower) = text.split_once(',').unwrap_or((text, "0"));
    let range = 0..=i32::MAX as u32;
    match (digits(upper, range.clone()), digits(lower, range)) {
        (Some(upper), Some(lower)) if lower <= upper => Ok(Thresholds { upper, lower }),
        _ => {
            report.wrong(field, allowed);
            Err(Noted)
        }
    }
}

fn read_forwarding(field: &Field<'_>, report: &mut Report<'_>) -> Result<bool, Noted> {
    let allowed = "must be nat or dsr; where neither was stated before, nat holds";
    match field.text(report, allowed)?.map(str::trim) {
        None | Some("nat") => Ok(false),
        Some("dsr") => Ok(true),
        Some(_) => {
            report.wrong(field, allowed);
            Err(Noted)
        }
    }
}

/// A number in digits, without a sign.
fn digits(text: &str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|number| range.contains(number))
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Object, Origin, Service, tree::Tree};
    use super::*;

    fn read(spec: &str, annotations: &str, previous: Option<&Service>) -> (Service, Vec<String>) {
        let yaml = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, annotations: {{{annotations}}}}}\n\
             spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}], {spec}}}\n"
        );
        let tree: Tree = serde_saphyr::from_str(&yaml).expect(&yaml);
        let object = Object::identify(Kind::Service, tree, Origin::default()).unwrap();
        let (service, problems) = Service::read(&object, previous);
        (service.unwrap(), problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn session_affinity_is_persistence() {
        let of = |spec: &str, annotations: &str| {
            let (service, problems) = read(spec, annotations, None);
            assert_eq!(problems, [""; 0]);
            [true, false].map(|v4| service.affinity.persistence(v4).map(|found| (found.timeout, found.netmask)))
        };
        let client = "sessionAffinity: ClientIP";
        let with =
            |seconds: u32| format!("{client}, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}");
        assert_eq!(of("sessionAffinity: None", ""), [None, None]);
        assert_eq!(of(client, ""), [Some((10_800, 32)), Some((10_800, 128))]);
        assert_eq!(of(&format!("{client}, sessionAffinityConfig: null"), ""), of(client, ""));
        assert_eq!(of(&with(1), ""), [Some((1, 32)), Some((1, 128))]);
        assert_eq!(of(&with(86_400), ""), [Some((86_400, 32)), Some((86_400, 128))]);
        let netmask =
            |text: &str| of(client, &format!("bpvs.io/persistence-netmask: \"{text}\"")).map(|p| p.unwrap().1);
        assert_eq!(netmask("24"), [24, 128]);
        assert_eq!(netmask("255.255.254.0"), [23, 128]);
        assert_eq!(netmask("255.255.255.0, 64"), [24, 64]);
    }

    #[test]
    fn one_packet_is_for_udp_and_thresholds_for_every_endpoint() {
        let (service, problems) =
            read("type: ClusterIP", "bpvs.io/one-packet: \"true\", bpvs.io/thresholds: \"100,80\"", None);
        assert_eq!(problems, [""; 0]);
        assert!(service.affinity.one_packet(Protocol::Udp) && !service.affinity.one_packet(Protocol::Tcp));
        assert_eq!(service.affinity.thresholds, Thresholds { upper: 100, lower: 80 });
        assert!(!service.affinity.direct_return);
        for (value, direct) in [("dsr", true), ("\" dsr \"", true), ("nat", false), ("null", false)] {
            let (service, problems) = read("type: ClusterIP", &format!("bpvs.io/forwarding: {value}"), None);
            assert_eq!((service.affinity.direct_return, problems.len()), (direct, 0), "{value}");
        }
        let (service, problems) = read("type: ClusterIP", "bpvs.io/forwarding: DSR", None);
        assert!(!service.affinity.direct_return);
        assert_eq!(
            problems,
            [
                "Service default/web: metadata.annotations[bpvs.io/forwarding]: \"DSR\": must be nat or dsr; where neither was \
              stated before, nat holds"
            ]
        );
        let (service, _) = read("type: ClusterIP", "bpvs.io/thresholds: \"7\"", None);
        assert_eq!(service.affinity.thresholds, Thresholds { upper: 7, lower: 0 });
    }

    #[test]
    fn what_is_wrong_is_one_problem_with_its_field_and_keeps_its_last_value() {
        let client = "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}";
        let all = "bpvs.io/persistence-netmask: \"16,48\", bpvs.io/one-packet: \"true\", bpvs.io/thresholds: \"9\", \
                   bpvs.io/forwarding: dsr";
        let (right, problems) = read(client, all, None);
        assert_eq!(problems, [""; 0]);
        let timeout = |text: &str| {
            format!("sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {text}}}}}")
        };
        let annotated = |name: &str, value: &str| {
            let rest =
                all.split(", ").filter(|annotation| !annotation.starts_with(name)).collect::<Vec<_>>().join(", ");
            format!("{name}: {value}, {rest}")
        };
        let mut cases = vec![
            ("sessionAffinity: ClientIp".to_owned(), all.to_owned(), "spec.sessionAffinity: \"ClientIp\""),
            ("sessionAffinity: 1".to_owned(), all.to_owned(), "spec.sessionAffinity: 1"),
            (
                "sessionAffinity: ClientIP, sessionAffinityConfig: [1]".to_owned(),
                all.to_owned(),
                "spec.sessionAffinityConfig: a list of 1: must be a map",
            ),
        ];
        for value in ["0", "86401", "-1", "1.5", "\"60\"", "true"] {
            cases.push((timeout(value), all.to_owned(), "clientIP.timeoutSeconds: "));
        }
        for value in ["\"0\"", "\"33\"", "\"24,129\"", "\"24,\"", "\"255.0.255.0\"", "\"0.0.0.0\"", "24", "\"\""] {
            cases.push((client.to_owned(), annotated("bpvs.io/persistence-netmask", value), "persistence-netmask]"));
        }
        for value in ["DSR", "direct", "true", "\"\"", "[nat]"] {
            cases.push((client.to_owned(), annotated("bpvs.io/forwarding", value), "forwarding]"));
        }
        for value in ["\"yes\"", "true", "\"\""] {
            cases.push((client.to_owned(), annotated("bpvs.io/one-packet", value), "one-packet]"));
        }
        for value in ["\"1,2\"", "\"-1\"", "\"2147483648\"", "\"\"", "\"1,\"", "7"] {
            cases.push((client.to_owned(), annotated("bpvs.io/thresholds", value), "thresholds]"));
        }
        for (spec, annotations, expected) in cases {
            let (service, problems) = read(&spec, &annotations, Some(&right));
            assert_eq!(problems.len(), 1, "{spec} {annotations}: {problems:?}");
            assert!(problems[0].contains(expected), "{expected}: {problems:?}");
            assert_eq!(service.affinity, right.affinity, "{spec} {annotations}");
            // Without an earlier version it is default, and the Service is served.
            let (service, _) = read(&spec, &annotations, None);
            assert_eq!(service.ports.len(), 1);
        }
    }

    #[test]
    fn a_netmask_without_affinity_is_told_of() {
        let (service, problems) = read("type: ClusterIP", "bpvs.io/persistence-netmask: \"24\"", None);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].ends_with("has no effect without spec.sessionAffinity: ClientIP"), "{problems:?}");
        assert_eq!(service.affinity.persistence(true), None);
    }
}
