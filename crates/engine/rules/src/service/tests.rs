use super::*;
use proptest::prelude::{Strategy, proptest};
use std::collections::BTreeMap;

fn port(address: &str, port: u16, endpoints: &[&str]) -> ServicePort {
    ServicePort {
        address: address.parse().unwrap(),
        transport: Transport::Tcp,
        port,
        endpoints: endpoints.iter().map(|e| e.parse().unwrap()).collect(),
        name: "default/web:http".into(),
    }
}

fn surroundings() -> Surroundings {
    Surroundings {
        service_networks: vec!["10.96.0.0/16".parse().unwrap()],
        own_addresses: vec!["10.96.0.10".parse().unwrap()],
        pod_networks: vec!["10.244.0.0/24".parse().unwrap()],
        bridge: "ambit0".into(),
    }
}

fn rules(ports: Vec<ServicePort>) -> ServiceRules {
    ServiceRules::new(surroundings(), ports)
}

#[track_caller]
fn check_update(old: Vec<ServicePort>, new: Vec<ServicePort>, expected: &str) {
    let batch = rules(new).update(&rules(old));
    let text = batch.map_or(String::new(), |b| b.to_string());
    let short: String =
        text.lines().map(|l| l.replace(" inet ambit-services", "") + "\n").collect::<Vec<_>>().concat();
    assert_eq!(short, expected);
}

#[test]
fn a_new_service_adds_its_chain_and_elements() {
    check_update(
        vec![],
        vec![port("10.96.0.20", 80, &["10.244.0.3:8080", "10.244.0.2:8080"])],
        "add chain pick4-2\n\
         add rule pick4-2 [ payload load 4b @ network header + 16 => reg 8 ] [ meta load l4proto => reg 9 ] \
         [ payload load 2b @ transport header + 2 => reg 10 ] [ numgen reg 11 = random mod 2 offset 0 ] \
         [ lookup reg 8 set endpoints4 dreg 16 ] [ nat dnat ip addr reg 16 proto reg 17 ]\n\
         add element endpoints4 { 10.96.0.20 . 6 . 80 . 0x0 : 10.244.0.2 . 8080, \
         10.96.0.20 . 6 . 80 . 0x1 : 10.244.0.3 . 8080 }\n\
         add element services4 { 10.96.0.20 . 6 . 80 comment \"default/web:http\" : goto -> pick4-2 }\n\
         add element hairpin4 { 10.244.0.2 . 10.244.0.2, 10.244.0.3 . 10.244.0.3 }\n",
    );
}

#[test]
fn a_lost_endpoint_moves_the_service_to_the_smaller_chain() {
    check_update(
        vec![
            port("10.96.0.20", 80, &["10.244.0.2:80"]),
            port("10.96.0.21", 80, &["10.244.0.2:80", "10.244.0.3:80"]),
        ],
        vec![port("10.96.0.20", 80, &["10.244.0.2:80"]), port("10.96.0.21", 80, &["10.244.0.2:80"])],
        "delete element endpoints4 { 10.96.0.21 . 6 . 80 . 0x0 : 10.244.0.2 . 80, \
         10.96.0.21 . 6 . 80 . 0x1 : 10.244.0.3 . 80 }\n\
         delete element services4 { 10.96.0.21 . 6 . 80 comment \"default/web:http\" : goto -> pick4-2 }\n\
         add element endpoints4 { 10.96.0.21 . 6 . 80 . 0x0 : 10.244.0.2 . 80 }\n\
         add element services4 { 10.96.0.21 . 6 . 80 comment \"default/web:http\" : goto -> pick4-1 }\n\
         delete element hairpin4 { 10.244.0.3 . 10.244.0.3 }\n\
         flush chain pick4-2\n\
         delete chain pick4-2\n",
    );
}

#[test]
fn nothing_changes_for_the_same_services_in_another_order() {
    let (a, b) = (port("10.96.0.20", 80, &["10.244.0.2:80"]), port("fd00::1", 80, &["[fd01::2]:80"]));
    check_update(vec![a.clone(), b.clone()], vec![b, a], "");
}

#[test]
fn a_service_without_endpoints_of_its_family_is_left_to_the_refusal() {
    assert_eq!(
        rules(vec![port("10.96.0.20", 80, &[]), port("10.96.0.21", 80, &["[fd01::2]:80"])]).ports(),
        0
    );
}

#[test]
fn the_hosts_own_service_addresses_are_not_rewritten() {
    assert_eq!(rules(vec![port("10.96.0.10", 53, &["10.244.0.2:53"])]).ports(), 0);
}

#[test]
fn more_endpoints_than_the_bound_are_cut() {
    let many: Vec<String> =
        (0..ENDPOINTS_MAX + 5).map(|n| format!("10.244.{}.{}:80", n / 250, n % 250 + 1)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let rules = rules(vec![port("10.96.0.20", 80, &many)]);
    assert_eq!(rules.pick_chains().into_iter().collect::<Vec<_>>(), [(Family::Ip, ENDPOINTS_MAX)]);
}

#[test]
fn other_surroundings_replace_the_table() {
    let ports = vec![port("10.96.0.20", 80, &["10.244.0.2:80"])];
    let old = ServiceRules::new(Surroundings::default(), ports.clone());
    assert_eq!(rules(ports.clone()).update(&old), Some(rules(ports).replace()));
}

#[test]
fn the_replacement_refuses_what_matches_no_service_and_hides_pods_outside() {
    let text = rules(vec![]).replace().to_string();
    let refusal = "add rule inet ambit-services refuse-forward [ meta load nfproto => reg 1 ] [ cmp eq reg 1 0x02 ] \
                   [ payload load 4b @ network header + 16 => reg 1 ] \
                   [ bitwise reg 1 = ( reg 1 & 0xffff0000 ) ^ 0x00000000 ] [ cmp eq reg 1 0x0a600000 ] \
                   [ payload load 4b @ network header + 16 => reg 1 ] [ cmp neq reg 1 0x0a60000a ] \
                   [ counter ] [ reject port unreachable ] comment \"no endpoint\"";
    assert!(text.contains(refusal), "{text}");
    assert!(text.contains("[ masq ] comment \"pods to the outside\""), "{text}");
    assert!(
        text.starts_with("add table inet ambit-services\ndelete table inet ambit-services\nadd table"),
        "{text}"
    );
}

/// What the kernel would hold after batches: chains with their rules, and sets with their elements.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kernel {
    chains: BTreeMap<String, Vec<String>>,
    sets: BTreeMap<String, BTreeMap<Vec<Datum>, Element>>,
}

impl Kernel {
    /// Refuses what the kernel refuses.
    fn apply(&mut self, batch: &Batch) {
        for command in &batch.commands {
            match command {
                Command::AddTable(_) => {}
                Command::DeleteTable(_) => *self = Self::default(),
                Command::AddSet(_, set) => drop(self.sets.entry(set.name.clone()).or_default()),
                Command::AddChain(_, chain) => drop(self.chains.entry(chain.name.clone()).or_default()),
                Command::AddRule(_, chain, rule) => {
                    self.chains.get_mut(chain).unwrap().push(rule.to_string())
                }
                Command::AddElements(_, set, elements) => elements.iter().for_each(|e| self.add(set, e)),
                Command::DeleteElements(_, set, elements) => {
                    let set = self.sets.get_mut(set).unwrap();
                    elements.iter().for_each(|e| drop(set.remove(&e.key).expect("it is there")));
                }
                Command::FlushChain(_, chain) => self.chains.get_mut(chain).unwrap().clear(),
                Command::DeleteChain(_, chain) => {
                    assert_eq!(self.chains.remove(chain), Some(vec![]));
                    assert!(!self.leads_to(chain), "an element leads to {chain}");
                }
                other => panic!("unexpected: {other}"),
            }
        }
    }

    fn add(&mut self, set: &str, element: &Element) {
        if let Some(Verdict::Goto(chain)) = &element.verdict {
            assert!(self.chains.contains_key(chain), "no chain {chain}");
        }
        let before = self.sets.get_mut(set).unwrap().insert(element.key.clone(), element.clone());
        assert_eq!(before, None, "an element is added twice");
    }

    fn leads_to(&self, chain: &str) -> bool {
        let verdict = Some(Verdict::Goto(chain.to_owned()));
        self.sets.values().flat_map(BTreeMap::values).any(|element| element.verdict == verdict)
    }
}

/// A few services of both families that share ports, protocols and endpoints.
fn any_ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let endpoint = (0..6u8, proptest::bool::ANY)
        .prop_map(|(n, four)| if four { format!("10.244.0.{n}:80") } else { format!("[fd01::{n}]:80") });
    let one = (0..4u8, proptest::bool::ANY, 80..82u16, proptest::collection::vec(endpoint, 0..5));
    let one = one.prop_map(|(n, four, number, endpoints)| {
        let address = if four { format!("10.96.0.{n}") } else { format!("fd96::{n}") };
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        port(&address, number, &endpoints)
    });
    proptest::collection::vec(one, 0..8)
}

proptest! {
    /// INV-05 for service routing.
    #[test]
    fn a_series_of_updates_equals_a_replacement(history in proptest::collection::vec(any_ports(), 1..8)) {
        let (mut kernel, mut now) = (Kernel::default(), rules(vec![]));
        kernel.apply(&now.replace());
        for ports in history {
            let next = rules(ports);
            if let Some(batch) = next.update(&now) {
                kernel.apply(&batch);
            }
            now = next;
        }
        let mut fresh = Kernel::default();
        fresh.apply(&now.replace());
        assert_eq!(kernel, fresh);
    }
}
