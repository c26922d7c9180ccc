//! Where the API server keeps its objects, on the command line.

use ambit_apiserver::{EtcdSettings, EtcdTls};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of the keys when the URL names none.
const PREFIX: &str = "/ambit";

/// Where objects are kept, if not in the state folder.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Store {
    /// Keep objects in etcd instead: etcd://HOST:PORT[,HOST:PORT…][/PREFIX] in plain text, etcds://… over TLS. Servers
    /// started with the same store and copies of the same certificates (STATE/pki) serve the same objects.
    #[arg(long = "store", value_name = "URL", requires = "state")]
    pub(crate) url: Option<StoreUrl>,
    /// PEM file of the authorities that vouch for etcd.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) etcd_cafile: Option<PathBuf>,
    /// PEM file of the client certificate shown to etcd.
    #[arg(long, value_name = "FILE", requires_all = ["url", "etcd_keyfile"])]
    pub(crate) etcd_certfile: Option<PathBuf>,
    /// PEM file of its private key.
    #[arg(long, value_name = "FILE", requires_all = ["url", "etcd_certfile"])]
    pub(crate) etcd_keyfile: Option<PathBuf>,
}

impl Store {
    /// The etcd that is meant; `None`: none.
    ///
    /// # Errors
    /// URL and files do not go together.
    pub(crate) fn etcd(&self) -> Result<Option<EtcdSettings>, String> {
        let Some(url) = &self.url else { return Ok(None) };
        let tls = match (url.tls, &self.etcd_cafile) {
            (true, Some(authorities)) => Some(EtcdTls {
                authorities: authorities.clone(),
                client: self.etcd_certfile.clone().zip(self.etcd_keyfile.clone()),
            }),
            (true, None) => return Err("etcds:// needs --etcd-cafile: who vouches for etcd".to_owned()),
            (false, Some(_)) => return Err("--etcd-cafile is for etcds://, the store is etcd://".to_owned()),
            (false, None) => None,
        };
        Ok(Some(EtcdSettings { members: url.members.clone(), prefix: url.prefix.clone(), tls }))
    }
}

/// `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    tls: bool,
    members: Vec<String>,
    prefix: String,
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "it must be etcd://HOST:PORT[,HOST:PORT…][/PREFIX], or etcds://… for TLS";
        let (scheme, rest) = text.split_once("://").ok_or(form)?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(form.to_owned()),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        if members.iter().any(|member| !member.contains(':')) {
            return Err(form.to_owned());
        }
        let prefix = if prefix.is_empty() { PREFIX.to_owned() } else { format!("/{prefix}") };
        Ok(Self { tls, members, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(bool, &[&str], &str)>) {
        let read = text.parse::<StoreUrl>().ok();
        let expected = expected.map(|(tls, members, prefix)| StoreUrl {
            tls,
            members: members.iter().map(|m| (*m).to_owned()).collect(),
            prefix: prefix.to_owned(),
        });
        assert_eq!(read, expected, "{text}");
    }

    #[test]
    fn a_store_is_a_url_of_etcd() {
        check("etcd://127.0.0.1:2379", Some((false, &["127.0.0.1:2379"], "/ambit")));
        check("etcds://a:2379,b:2379/x/y", Some((true, &["a:2379", "b:2379"], "/x/y")));
        check("etcd://[::1]:2379/", Some((false, &["[::1]:2379"], "/ambit")));
        for wrong in ["127.0.0.1:2379", "http://a:1", "etcd://", "etcd://a", "etcd://a:1,b/x", "redis://a:1"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn url_and_files_must_go_together() {
        let store = |url: &str, ca: Option<&str>| Store {
            url: Some(url.parse().unwrap()),
            etcd_cafile: ca.map(PathBuf::from),
            ..Store::default()
        };
        assert!(store("etcd://a:1", None).etcd().unwrap().unwrap().tls.is_none());
        assert!(store("etcds://a:1", Some("ca")).etcd().unwrap().unwrap().tls.is_some());
        for wrong in [store("etcds://a:1", None), store("etcd://a:1", Some("ca"))] {
            assert!(wrong.etcd().unwrap_err().contains("etcds://"));
        }
        assert_eq!(Store::default().etcd(), Ok(None));
    }
}
