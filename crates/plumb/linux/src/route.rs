//! Routing rules, routes, links and addresses over netlink.
//!
//! All functions act on the network namespace of the calling thread and block for one exchange with the kernel.

use crate::Error;
use ambit_rules::Family;
use ambit_rules::pod::MarkedRoute;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// The loopback interface has index 1 in every network namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Room for one reply datagram; the kernel's dumps use at most 32 KiB.
const REPLY_BYTES: usize = 64 * 1024;
/// Datagrams read for one dump: far more routes and rules than a pod's namespace has.
const DATAGRAMS_MAX: usize = 4096;

/// Adds the routing rule and the route if they are not there.
///
/// # Errors
/// The kernel refused one of them.
pub fn add_marked(wanted: &MarkedRoute) -> Result<(), Error> {
    let attempt = |what: &str| format!("add the {} {what}", describe(wanted));
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    match request(RouteNetlinkMessage::NewRule(rule(wanted)), flags | NLM_F_EXCL) {
        Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(Error::system(attempt("rule"), e)),
        _ => {}
    }
    request(RouteNetlinkMessage::NewRoute(route(wanted)), flags | NLM_F_REPLACE)
        .map_err(|e| Error::system(attempt("route"), e))
}

/// Removes the routing rule and the route if they are there.
///
/// # Errors
/// The kernel refused for another reason than their absence.
pub fn remove_marked(unwanted: &MarkedRoute) -> Result<(), Error> {
    let attempt = |what: &str| format!("remove the {} {what}", describe(unwanted));
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let absent = [libc::ENOENT, libc::ESRCH, libc::EAFNOSUPPORT].map(Some);
    for (what, message) in [
        ("rule", RouteNetlinkMessage::DelRule(rule(unwanted))),
        ("route", RouteNetlinkMessage::DelRoute(route(unwanted))),
    ] {
        match request(message, flags) {
            Err(e) if !absent.contains(&e.raw_os_error()) => return Err(Error::system(attempt(what), e)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether both the routing rule and the route are in place.
///
/// # Errors
/// The kernel cannot be asked.
pub fn has_marked(wanted: &MarkedRoute) -> Result<bool, Error> {
    let failed = |e| Error::system("list routing rules and routes", e);
    let (expected_rule, expected_route) = (rule(wanted), route(wanted));
    let mut query = RuleMessage::default();
    query.header.family = family(wanted.family);
    let rule_found =
        dump(RouteNetlinkMessage::GetRule(query)).map_err(failed)?.iter().any(|found| match found {
            RouteNetlinkMessage::NewRule(found) => {
                found.header.table == expected_rule.header.table
                    && expected_rule.attributes.iter().all(|a| found.attributes.contains(a))
            }
            _ => false,
        });
    let mut query = RouteMessage::default();
    query.header.address_family = family(wanted.family);
    let route_found =
        dump(RouteNetlinkMessage::GetRoute(query)).map_err(failed)?.iter().any(|found| match found {
            RouteNetlinkMessage::NewRoute(found) => {
                found.header.table == expected_route.header.table
                    && found.header.kind == RouteType::Local
                    && found.header.destination_prefix_length == 0
                    && found.attributes.contains(&RouteAttribute::Oif(LOOPBACK_INDEX))
            }
            _ => false,
        });
    Ok(rule_found && route_found)
}

/// Brings an interface up.
///
/// # Errors
/// There is no such interface, or the caller may not change it.
pub fn set_up(interface: &str) -> Result<(), Error> {
    let failed = |e: io::Error| Error::system(format!("bring up the interface {interface}"), e);
    let index = nix::net::if_::if_nametoindex(interface).map_err(|e| failed(e.into()))?;
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(link), NLM_F_REQUEST | NLM_F_ACK).map_err(failed)
}

/// Addresses of all interfaces.
///
/// # Errors
/// The kernel cannot be asked.
pub fn addresses() -> Result<Vec<IpAddr>, Error> {
    let all = nix::ifaddrs::getifaddrs().map_err(|e| Error::system("list interface addresses", e))?;
    Ok(all
        .filter_map(|interface| {
            let address = interface.address?;
            address
                .as_sockaddr_in()
                .map(|v4| IpAddr::V4(v4.ip()))
                .or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect())
}

/// Whether the namespace's loopback interface can carry IPv6.
pub fn ipv6_on_loopback() -> bool {
    // The path shows the namespace of the reading thread.
    std::fs::read_to_string(Path::new("/proc/sys/net/ipv6/conf/lo/disable_ipv6"))
        .is_ok_and(|text| text.trim() != "1")
}

fn describe(wanted: &MarkedRoute) -> String {
    format!("{} fwmark {:#x}/{:#x} table {}", wanted.family, wanted.mark, wanted.mask, wanted.table)
}

fn family(family: Family) -> AddressFamily {
    if family == Family::Ip6 { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

/// `fwmark MARK/MASK lookup TABLE priority PRIORITY`.
fn rule(wanted: &MarkedRoute) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(wanted.family);
    message.header.action = RuleAction::ToTable;
    message.header.table = u8::try_from(wanted.table).unwrap_or_default();
    message.attributes = vec![
        RuleAttribute::Priority(wanted.priority),
        RuleAttribute::FwMark(wanted.mark),
        RuleAttribute::FwMask(wanted.mask),
        RuleAttribute::Table(wanted.table),
    ];
    message
}

/// `local default dev lo table TABLE scope host`.
fn route(wanted: &MarkedRoute) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(wanted.family),
        table: u8::try_from(wanted.table).unwrap_or_default(),
        protocol: RouteProtocol::Boot,
        scope: RouteScope::Host,
        kind: RouteType::Local,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Table(wanted.table), RouteAttribute::Oif(LOOPBACK_INDEX)];
    message
}

fn send(message: RouteNetlinkMessage, flags: u16) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel answers within the send, so that nothing is waited for afterwards.
    socket.set_non_blocking(true)?;
    let mut request = NetlinkMessage::from(message);
    request.header.flags = flags;
    request.header.sequence_number = 1;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    Ok(socket)
}

/// Sends a request and waits for its acknowledgement.
pub(crate) fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let socket = send(message, flags)?;
    match receive(&socket)?.into_iter().next() {
        Some(NetlinkPayload::Error(answer)) if answer.code.is_none() => Ok(()),
        Some(NetlinkPayload::Error(answer)) => Err(answer.to_io()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Sends a query and gathers its answers.
fn dump(message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let socket = send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut found = Vec::new();
    for _ in 0..DATAGRAMS_MAX {
        for payload in receive(&socket)? {
            match payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(answer) => return Err(answer.to_io()),
                _ => {}
            }
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

/// The messages of the next datagram.
fn receive(socket: &Socket) -> io::Result<Vec<NetlinkPayload<RouteNetlinkMessage>>> {
    let mut buffer = Vec::with_capacity(REPLY_BYTES);
    socket.recv(&mut buffer, 0)?;
    let (mut rest, mut messages) = (buffer.as_slice(), Vec::new());
    while rest.len() >= 4 {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
        let length = usize::try_from(message.header.length).map_err(io::Error::other)?;
        messages.push(message.payload);
        rest = rest.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;
    use ambit_rules::pod::{Families, plan_routes};

    fn ip(arguments: &str) -> String {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn marked_routes_come_and_go_exactly() {
        let ns = NetNs::create_private().unwrap();
        ns.run(|| {
            let state = || ["rule", "-6 rule", "route show table all", "-6 route show table all"].map(ip);
            let before = state();
            for route in plan_routes(Families::Dual) {
                assert!(!has_marked(&route).unwrap());
                add_marked(&route).unwrap();
                add_marked(&route).expect("adding again changes nothing");
                assert!(has_marked(&route).unwrap());
            }
            let rules = ip("rule");
            assert_eq!(rules.matches("32764:\tfrom all fwmark 0x111/0xfff lookup 100").count(), 1, "{rules}");
            assert_eq!(ip("route show table 100"), "local default dev lo scope host \n");
            assert!(ip("-6 route show table 100").starts_with("local default dev lo"));
            for route in plan_routes(Families::Dual) {
                remove_marked(&route).unwrap();
                remove_marked(&route).expect("removing again changes nothing");
            }
            assert_eq!(state(), before);
        })
        .unwrap();
    }

    #[test]
    fn loopback_addresses_are_listed_once_it_is_up() {
        let ns = NetNs::create_private().unwrap();
        let found = ns.run(addresses).unwrap().unwrap();
        assert!(found.contains(&IpAddr::from([127, 0, 0, 1])), "{found:?}");
        let error = ns.run(|| set_up("nowhere")).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "cannot bring up the interface nowhere");
    }
}
