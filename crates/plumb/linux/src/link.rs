//! Links of our own: a bridge without ports, addresses on it and routes through it.
//!
//! A bridge without ports serves as a dummy link: it needs no kernel feature beyond the one that pods are attached with.
//! All functions act on the network namespace of the calling thread and block for one exchange with the kernel.

use crate::Error;
use crate::route::request;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// Flags of a request that makes something.
const CREATE: u16 = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;

/// Makes a bridge without ports and brings it up. One that is there stays.
///
/// # Errors
/// The kernel has no bridges, or the caller may not make one.
pub fn add_bridge(name: &str) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
    ];
    match request(RouteNetlinkMessage::NewLink(link), CREATE | NLM_F_EXCL) {
        Err(e) if e.raw_os_error() != Some(libc::EEXIST) => {
            Err(Error::system(format!("make the bridge {name} (needs root and CONFIG_BRIDGE)"), e))
        }
        _ => crate::route::set_up(name),
    }
}

/// Adds an address to a link. One that is there stays.
///
/// # Errors
/// There is no such link, or the caller may not change it.
pub fn add_address(link: &str, address: IpNet) -> Result<(), Error> {
    let failed = |e: io::Error| Error::system(format!("add the address {address} to the link {link}"), e);
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index(link).map_err(failed)?;
    message.attributes =
        vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    request(RouteNetlinkMessage::NewAddress(message), CREATE | NLM_F_REPLACE).map_err(failed)
}

/// Routes a network through a link, in the main table. `source` is what this host's own packets to it are sent from.
///
/// # Errors
/// There is no such link, `source` is no address of this host, or the caller may not change routes.
pub fn add_route(network: IpNet, link: &str, source: Option<IpAddr>) -> Result<(), Error> {
    let failed = |e: io::Error| Error::system(format!("route {network} through the link {link}"), e);
    let destination = match network.network() {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(network.addr()),
        destination_prefix_length: network.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Boot,
        scope: RouteScope::Link,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes =
        vec![RouteAttribute::Destination(destination), RouteAttribute::Oif(index(link).map_err(failed)?)];
    message.attributes.extend(source.map(|address| {
        RouteAttribute::PrefSource(match address {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        })
    }));
    request(RouteNetlinkMessage::NewRoute(message), CREATE | NLM_F_REPLACE).map_err(failed)
}

/// Removes a link with its addresses and routes. One that is not there stays so.
///
/// # Errors
/// The caller may not remove it.
pub fn remove(name: &str) -> Result<(), Error> {
    let failed = |e: io::Error| Error::system(format!("remove the link {name}"), e);
    let Ok(index) = index(name) else { return Ok(()) };
    let mut link = LinkMessage::default();
    link.header.index = index;
    match request(RouteNetlinkMessage::DelLink(link), NLM_F_REQUEST | NLM_F_ACK) {
        Err(e) if e.raw_os_error() != Some(libc::ENODEV) => Err(failed(e)),
        _ => Ok(()),
    }
}

fn index(name: &str) -> io::Result<u32> {
    nix::net::if_::if_nametoindex(name).map_err(Into::into)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    fn ip(arguments: &str) -> String {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_link_of_our_own_holds_addresses_and_routes_and_leaves_nothing() {
        NetNs::create_private()
            .unwrap()
            .run(|| {
                let state = || ["link", "address", "route show table all", "-6 route show table all"].map(ip);
                let before = state();
                let net = |text: &str| text.parse::<IpNet>().unwrap();
                for _ in 0..2 {
                    add_bridge("own0").unwrap();
                    add_address("own0", net("10.96.0.10/32")).unwrap();
                    add_address("own0", net("fd00::10/128")).unwrap();
                    add_route(net("10.96.0.0/16"), "own0", Some([10, 96, 0, 10].into())).unwrap();
                    add_route(net("fd00::/112"), "own0", None).unwrap();
                }
                assert!(ip("-brief address show own0").contains("10.96.0.10/32 fd00::10/128"));
                assert!(ip("route").starts_with("10.96.0.0/16 dev own0 scope link src 10.96.0.10"));
                assert!(ip("-6 route").contains("fd00::/112 dev own0"));
                remove("own0").unwrap();
                remove("own0").expect("removing again changes nothing");
                assert_eq!(state(), before);
            })
            .unwrap();
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        NetNs::create_private()
            .unwrap()
            .run(|| {
                let error = add_address("nowhere", "10.0.0.1/32".parse().unwrap()).unwrap_err();
                assert_eq!(error.to_string(), "cannot add the address 10.0.0.1/32 to the link nowhere");
                add_bridge("own0").unwrap();
                let foreign = Some([192, 0, 2, 1].into());
                let error = add_route("10.96.0.0/16".parse().unwrap(), "own0", foreign).unwrap_err();
                assert_eq!(error.to_string(), "cannot route 10.96.0.0/16 through the link own0");
            })
            .unwrap();
    }
}
