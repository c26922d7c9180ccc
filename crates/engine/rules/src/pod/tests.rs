use super::*;
use std::path::Path;

/// Compares the plan's text with a golden file; `UPDATE_GOLDEN=1` rewrites it.
#[track_caller]
fn check(name: &str, plan: &Batch) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, plan.to_string()).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(plan.to_string(), golden, "{name} differs");
}

#[test]
fn the_rule_sets_are_the_golden_ones() {
    check("pod-dual.golden", &plan_capture(&Capture::default()));
    check("pod-v4.golden", &plan_capture(&Capture { families: Families::V4, ..Capture::default() }));
    check(
        "pod-v4-no-dns-bypass.golden",
        &plan_capture(&Capture {
            inbound: Inbound::Bypassed,
            dns: Dns::Untouched,
            families: Families::V4,
            reroute_interfaces: vec!["tap0".into(), "tap1".into()],
            excluded: Excluded::default(),
        }),
    );
    let excluded = Excluded {
        inbound_ports: vec![9090],
        outbound_ports: vec![5432, 6379],
        outbound_nets: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
    };
    let capture = Capture { excluded, ..Capture::default() };
    check("pod-dual-excluded.golden", &plan_capture(&capture));
    check("pod-v4-excluded.golden", &plan_capture(&Capture { families: Families::V4, ..capture }));
    check("pod-release.golden", &plan_release());
    check("host.golden", &crate::host::plan_probe_rules(0, Families::Dual));
    check(
        "host-address.golden",
        &crate::host::plan_probe_addresses(
            &["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            "uid-7",
        ),
    );
}

#[test]
fn every_plan_can_be_rendered() {
    for plan in [
        plan_capture(&Capture::default()),
        plan_release(),
        crate::host::plan_probe_rules(1000, Families::Dual),
        crate::host::plan_probe_removal(),
    ] {
        let encoded = plan.encode(1).unwrap();
        assert_eq!(encoded.objects.len(), plan.commands.len());
    }
}
