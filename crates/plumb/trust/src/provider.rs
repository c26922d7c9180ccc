//! The cryptography of connections between workloads.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::{Arc, LazyLock};

static MESH: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    // The suites that the field's proxies offer each other: AES-GCM in TLS 1.3 only.
    let cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
});

static CONTROL: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// For connections between workloads: TLS 1.3 with AES-GCM.
pub fn mesh() -> Arc<CryptoProvider> {
    MESH.clone()
}

/// For connections to the control plane: all that the library deems safe.
pub fn control() -> Arc<CryptoProvider> {
    CONTROL.clone()
}
