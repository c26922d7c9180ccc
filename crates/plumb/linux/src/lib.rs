//! Network namespaces, netlink, descriptor passing, socket options, mounts, /proc and cgroups.
//! It never holds policy. It is the only room with unsafe code.

pub mod capability;
pub mod descriptors;
pub mod error;
pub mod link;
pub mod mount;
pub mod netns;
pub mod nft;
pub mod own_mounts;
pub mod ownership;
pub mod packet;
pub mod process;
pub mod route;
pub mod seqpacket;
pub mod socket;
pub mod watch;

pub use error::Error;
