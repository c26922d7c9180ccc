//! The certificates and keys of a cluster: its CA, the API server's certificate, the key that signs service account
//! tokens, and client certificates made on demand.

use ambit_runtime::Clock;
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Validity of the cluster's CA.
const CA_VALIDITY: Duration = Duration::from_secs(10 * 365 * DAY);
/// Validity of the certificates of servers.
const SERVER_VALIDITY: Duration = Duration::from_secs(365 * DAY);
/// A serving certificate with less time left is made anew at start.
const RENEW_BEFORE: Duration = Duration::from_secs(60 * DAY);
/// Certificates begin this long ago, for peers whose clock is behind.
const BACKDATE: Duration = Duration::from_secs(3600);
const DAY: u64 = 24 * 3600;

/// The cluster's key material could not be read, made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// One file of a pair is missing.
    #[error("{} is there but {} is missing: restore it, or remove both to make new ones (clients then need new credentials)", found.display(), missing.display())]
    HalfPair {
        /// The file that exists.
        found: PathBuf,
        /// The file that does not.
        missing: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{} does not hold a valid {what}: {detail}", path.display())]
    Malformed {
        /// What should be there.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The certificate library cannot write that many groups.
    #[error("cannot make a certificate for {subject} with {count} groups: at most {CLIENT_GROUPS_MAX} fit")]
    TooManyGroups {
        /// Whose certificate.
        subject: String,
        /// Wanted groups.
        count: usize,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate for {subject}: {source}")]
    Issue {
        /// Whose certificate.
        subject: String,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
}

/// Groups that a client certificate can carry. The certificate library keeps one entry per kind of name, and an
/// organisation can be written in two ways.
pub const CLIENT_GROUPS_MAX: usize = 2;

/// A certificate with its private key, both PEM.
#[derive(Clone)]
pub struct Credentials {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key, PKCS#8.
    pub key_pem: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The cluster's CA and what it has issued for the API server. Clones share one state.
#[derive(Clone)]
pub struct ClusterPki(Arc<Inner>);

struct Inner {
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server: Credentials,
    account_key_pem: String,
}

impl fmt::Debug for ClusterPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterPki").finish_non_exhaustive()
    }
}

impl ClusterPki {
    /// Reads the key material of a directory; makes what is not there yet. Keys are readable by their owner only.
    ///
    /// The API server's certificate is made anew when it nears its end or does not name all of `sans`
    /// (addresses or DNS names).
    ///
    /// # Errors
    /// The directory cannot be used, or files in it are damaged or incomplete.
    pub fn load_or_create(dir: &Path, sans: &[String]) -> Result<Self, Error> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| Error::File {
            action: "make the directory",
            path: dir.to_owned(),
            source,
        })?;
        let ca = match read_pair(dir, "ca")? {
            Some(pair) => pair,
            None => write_pair(dir, "ca", make_ca()?)?,
        };
        let issuer = issuer(&ca, &dir.join("ca.crt"), &dir.join("ca.key"))?;
        let server = match read_pair(dir, "apiserver")? {
            Some(pair) if serves(&pair, &dir.join("apiserver.crt"), sans)? => pair,
            _ => write_pair(dir, "apiserver", issue_server(&issuer, "kube-apiserver", sans)?)?,
        };
        let path = dir.join("sa.key");
        let account_key_pem = match read(&path)? {
            Some(pem) => pem,
            None => {
                let pem = new_key("service account tokens")?.serialize_pem();
                write(&path, &pem)?;
                pem
            }
        };
        PrivateKeyDer::from_pem_slice(account_key_pem.as_bytes()).map_err(|e| Error::Malformed {
            what: "private key",
            path,
            detail: e.to_string(),
        })?;
        Ok(Self(Arc::new(Inner { ca_pem: ca.cert_pem, issuer, server, account_key_pem })))
    }

    /// Key material that lives only as long as the process.
    ///
    /// # Errors
    /// A name in `sans` is neither an address nor a DNS name.
    pub fn in_memory(sans: &[String]) -> Result<Self, Error> {
        let ca = make_ca()?;
        let issuer = issuer(&ca, Path::new("(in memory)"), Path::new("(in memory)"))?;
        let server = issue_server(&issuer, "kube-apiserver", sans)?;
        let account_key_pem = new_key("service account tokens")?.serialize_pem();
        Ok(Self(Arc::new(Inner { ca_pem: ca.cert_pem, issuer, server, account_key_pem })))
    }

    /// The CA's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.0.ca_pem
    }

    /// The API server's certificate and key.
    pub fn server(&self) -> &Credentials {
        &self.0.server
    }

    /// The private key (P-256, PKCS#8, PEM) that signs service account tokens.
    pub fn account_key_pem(&self) -> &str {
        &self.0.account_key_pem
    }

    /// A client certificate: the user is its common name, the groups its organisations.
    ///
    /// # Errors
    /// A name does not fit in a certificate, or there are more than [`CLIENT_GROUPS_MAX`] groups.
    pub fn issue_client(
        &self,
        user: &str,
        groups: &[&str],
        validity: Duration,
    ) -> Result<Credentials, Error> {
        let mut params = leaf(user, &[], validity)?;
        if groups.len() > CLIENT_GROUPS_MAX {
            return Err(Error::TooManyGroups { subject: user.to_owned(), count: groups.len() });
        }
        for (kind, group) in [DnType::OrganizationName, second_organization()].into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        sign(&self.0.issuer, params, user)
    }

    /// A server certificate for addresses or DNS names.
    ///
    /// # Errors
    /// A name in `sans` is neither an address nor a DNS name.
    pub fn issue_server(&self, name: &str, sans: &[String]) -> Result<Credentials, Error> {
        issue_server(&self.0.issuer, name, sans)
    }
}

/// A kubeconfig with one cluster, one user with a client certificate, and one context that is in use.
pub fn kubeconfig(server: &str, ca_pem: &str, cert_pem: &str, key_pem: &str) -> String {
    let b64 = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: ambit\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {ca}\nusers:\n- name: admin\n  user:\n    client-certificate-data: {cert}\n    \
         client-key-data: {key}\ncontexts:\n- name: ambit\n  context:\n    cluster: ambit\n    user: admin\n\
         current-context: ambit\n",
        ca = b64(ca_pem),
        cert = b64(cert_pem),
        key = b64(key_pem),
    )
}

fn make_ca() -> Result<Credentials, Error> {
    let subject = "ambit-cluster-ca";
    let mut params = leaf(subject, &[], CA_VALIDITY)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = new_key(subject)?;
    let cert = params.self_signed(&key).map_err(|e| failed(subject, e))?;
    Ok(Credentials { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
}

fn issue_server(issuer: &Issuer<'_, KeyPair>, name: &str, sans: &[String]) -> Result<Credentials, Error> {
    let mut params = leaf(name, sans, SERVER_VALIDITY)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(issuer, params, name)
}

fn leaf(subject: &str, sans: &[String], validity: Duration) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(sans.to_vec()).map_err(|e| failed(subject, e))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let now = OffsetDateTime::from(Clock.wall());
    params.not_before = now - BACKDATE;
    params.not_after = now + validity;
    Ok(params)
}

fn sign(
    issuer: &Issuer<'_, KeyPair>,
    params: CertificateParams,
    subject: &str,
) -> Result<Credentials, Error> {
    let key = new_key(subject)?;
    let cert = params.signed_by(&key, issuer).map_err(|e| failed(subject, e))?;
    Ok(Credentials { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
}

/// organizationName again (X.520, 2.5.4.10), under another name so that it does not replace the first.
fn second_organization() -> DnType {
    DnType::CustomDnType(vec![2, 5, 4, 10])
}

fn new_key(subject: &str) -> Result<KeyPair, Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|e| failed(subject, e))
}

fn failed(subject: &str, source: rcgen::Error) -> Error {
    Error::Issue { subject: subject.to_owned(), source }
}

fn issuer(ca: &Credentials, cert: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>, Error> {
    let malformed = |what, path: &Path, e: rcgen::Error| Error::Malformed {
        what,
        path: path.to_owned(),
        detail: e.to_string(),
    };
    let pair = KeyPair::from_pem(&ca.key_pem).map_err(|e| malformed("private key", key, e))?;
    Issuer::from_ca_cert_pem(&ca.cert_pem, pair).map_err(|e| malformed("CA certificate", cert, e))
}

/// Whether a serving certificate still names all of `sans` and has time left.
fn serves(pair: &Credentials, path: &Path, sans: &[String]) -> Result<bool, Error> {
    let malformed = |detail: String| Error::Malformed { what: "certificate", path: path.to_owned(), detail };
    let der =
        CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).map_err(|e| malformed(e.to_string()))?;
    let (_, cert) = x509_parser::parse_x509_certificate(&der).map_err(|e| malformed(e.to_string()))?;
    let end = cert.validity().not_after.to_datetime();
    if end < OffsetDateTime::from(Clock.wall()) + RENEW_BEFORE {
        return Ok(false);
    }
    let named = cert.subject_alternative_name().map_err(|e| malformed(e.to_string()))?;
    let named: Vec<String> =
        named.iter().flat_map(|san| &san.value.general_names).filter_map(san_text).collect();
    Ok(sans.iter().all(|san| named.contains(san)))
}

fn san_text(name: &x509_parser::extensions::GeneralName<'_>) -> Option<String> {
    use x509_parser::extensions::GeneralName;
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| std::net::Ipv4Addr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| std::net::Ipv6Addr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}

fn read_pair(dir: &Path, name: &str) -> Result<Option<Credentials>, Error> {
    let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    match (read(&cert)?, read(&key)?) {
        (Some(cert_pem), Some(key_pem)) => Ok(Some(Credentials { cert_pem, key_pem })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::HalfPair { found: cert, missing: key }),
        (None, Some(_)) => Err(Error::HalfPair { found: key, missing: cert }),
    }
}

fn write_pair(dir: &Path, name: &str, pair: Credentials) -> Result<Credentials, Error> {
    write(&dir.join(format!("{name}.key")), &pair.key_pem)?;
    write(&dir.join(format!("{name}.crt")), &pair.cert_pem)?;
    Ok(pair)
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { action: "read", path: path.to_owned(), source }),
    }
}

/// Writes through a temporary file, so that a crash leaves the old file or the new one.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let temporary = path.with_extension("new");
    let written = (|| {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    written.map_err(|source| Error::File { action: "write", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
