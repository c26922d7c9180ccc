use super::*;
use crate::dns::zone::tests::zone;
use hickory_proto::rr::RecordType::{
    self, AAAA as Q6, ANY, CNAME as QC, PTR as QP, SOA as QS, SRV as QV, TXT as QT,
};
use std::fmt::Write as _;

const Q4: RecordType = RecordType::A;

/// `NOERROR answer; answer | additional`, or `CODE soa` for an empty answer with the zone's SOA.
fn shown(outcome: &Outcome) -> String {
    let answer = match outcome {
        Outcome::Forward => return "forward".into(),
        Outcome::Follow(answer, target) => return format!("{} then {target}", records(&answer.answers)),
        Outcome::Answer(answer) => answer,
    };
    let mut text = format!("{:?}", answer.code);
    if !answer.answers.is_empty() {
        write!(text, " {}", records(&answer.answers)).unwrap();
    }
    if !answer.additionals.is_empty() {
        write!(text, " | {}", records(&answer.additionals)).unwrap();
    }
    if answer.authorities.iter().any(|r| r.record_type() == RecordType::SOA && r.ttl == TTL_S) {
        text.push_str(" soa");
    }
    text
}

fn records(records: &[Record]) -> String {
    records.iter().map(|r| format!("{} {}", r.record_type(), r.data)).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn check(kind: RecordType, name: &str, expected: &str) {
    let question = Query::query(Name::from_ascii(name).unwrap(), kind);
    let outcome = answer(&zone(), &question, 0);
    assert_eq!(shown(&outcome), expected, "{kind} {name}");
}

#[test]
fn a_service_answers_its_own_addresses() {
    check(Q4, "web.shop.svc.cluster.local.", "NoError A 10.96.0.20");
    check(Q6, "web.shop.svc.cluster.local.", "NoError AAAA fd00::20");
    check(ANY, "web.shop.svc.cluster.local.", "NoError A 10.96.0.20; AAAA fd00::20");
    check(Q4, "WEB.Shop.svc.CLUSTER.local.", "NoError A 10.96.0.20");
}

#[test]
fn what_exists_without_the_asked_type_is_no_data() {
    check(Q6, "single.shop.svc.cluster.local.", "NoError soa");
    check(QV, "web.shop.svc.cluster.local.", "NoError soa");
    check(Q4, "shop.svc.cluster.local.", "NoError soa");
    check(Q4, "svc.cluster.local.", "NoError soa");
    check(Q4, "cluster.local.", "NoError soa");
    check(Q4, "_tcp.web.shop.svc.cluster.local.", "NoError soa");
    check(Q4, "_http._tcp.web.shop.svc.cluster.local.", "NoError soa");
}

#[test]
fn what_does_not_exist_is_denied_with_the_zones_authority() {
    check(Q4, "other.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "web.other.svc.cluster.local.", "NXDomain soa");
    check(Q4, "other.svc.cluster.local.", "NXDomain soa");
    check(Q4, "web.shop.cluster.local.", "NXDomain soa");
    check(Q4, "a.b.c.d.web.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "*.cluster.local.", "NXDomain soa");
    check(Q4, "host.web.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "_sctp.web.shop.svc.cluster.local.", "NXDomain soa");
    check(QV, "_https._tcp.web.shop.svc.cluster.local.", "NXDomain soa");
    check(QV, "http.tcp.web.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "pending.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "loop.shop.svc.cluster.local.", "ServFail");
}

#[test]
fn named_ports_have_service_records_with_the_addresses_beside() {
    check(
        QV,
        "_http._tcp.web.shop.svc.cluster.local.",
        "NoError SRV 0 100 80 web.shop.svc.cluster.local. | A 10.96.0.20; AAAA fd00::20",
    );
    check(
        QV,
        "_peer._tcp.db.shop.svc.cluster.local.",
        "NoError SRV 0 50 7000 10-244-0-7.db.shop.svc.cluster.local.; SRV 0 50 7000 db-0.db.shop.svc.cluster.local. \
         | A 10.244.0.7; A 10.244.0.5",
    );
}

#[test]
fn a_headless_service_answers_its_ready_endpoints() {
    check(Q4, "db.shop.svc.cluster.local.", "NoError A 10.244.0.5; A 10.244.0.7");
    check(Q4, "db-0.db.shop.svc.cluster.local.", "NoError A 10.244.0.5");
    check(Q4, "10-244-0-7.db.shop.svc.cluster.local.", "NoError A 10.244.0.7");
    check(Q4, "db-1.db.shop.svc.cluster.local.", "NXDomain soa");
    check(Q4, "idle.shop.svc.cluster.local.", "NXDomain soa");
}

#[test]
fn addresses_take_turns() {
    let question = Query::query(Name::from_ascii("db.shop.svc.cluster.local.").unwrap(), Q4);
    assert_eq!(shown(&answer(&zone(), &question, 1)), "NoError A 10.244.0.7; A 10.244.0.5");
}

#[test]
fn an_external_name_is_an_alias() {
    check(Q4, "out.shop.svc.cluster.local.", "CNAME example.org. then example.org.");
    check(QC, "out.shop.svc.cluster.local.", "NoError CNAME example.org.");
    check(Q4, "in.shop.svc.cluster.local.", "NoError CNAME web.shop.svc.cluster.local.; A 10.96.0.20");
}

#[test]
fn addresses_have_names() {
    check(QP, "20.0.96.10.in-addr.arpa.", "NoError PTR web.shop.svc.cluster.local.");
    check(QP, "5.0.244.10.in-addr.arpa.", "NoError PTR db-0.db.shop.svc.cluster.local.");
    check(QP, "9.0.244.10.in-addr.arpa.", "NXDomain soa");
    check(QP, "0.244.10.in-addr.arpa.", "NoError soa");
    check(QP, "1.1.1.1.in-addr.arpa.", "forward");
    check(QP, "10.in-addr.arpa.", "forward");
    check(QP, "x.y.in-addr.arpa.", "forward");
    check(
        QP,
        "0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
        "NoError PTR web.shop.svc.cluster.local.",
    );
}

#[test]
fn pods_are_named_by_their_address() {
    check(Q4, "10-244-0-9.shop.pod.cluster.local.", "NoError A 10.244.0.9");
    check(Q6, "fd01--9.shop.pod.cluster.local.", "NoError AAAA fd01::9");
    check(Q4, "web.shop.pod.cluster.local.", "NXDomain soa");
}

#[test]
fn the_zone_describes_itself() {
    check(QT, "dns-version.cluster.local.", "NoError TXT 1.1.0");
    check(Q4, "ns.dns.cluster.local.", "NoError A 10.96.0.10");
    check(
        QS,
        "cluster.local.",
        "NoError SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5",
    );
}

#[test]
fn other_names_go_upstream() {
    check(Q4, "example.org.", "forward");
    check(Q4, "mycluster.local.", "forward");
    check(Q4, ".", "forward");
}
