//! A server with a self-signed certificate, and TLS settings of a client that trusts it.

use crate::rig::{Rig, options};
use prombus::Bus;
use prombus_server::{ServerOptions, TlsOptions};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub struct TlsRig {
    pub rig: Rig,
    pub client_config: Arc<ClientConfig>,
    /// The folder of certificate and key.
    folder: PathBuf,
}

impl TlsRig {
    pub async fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("prombus-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let tls = TlsOptions { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
        std::fs::write(&tls.cert, made.cert.pem()).expect("written");
        std::fs::write(&tls.key, made.signing_key.serialize_pem()).expect("written");
        let rig = Rig::over(Bus::memory(), ServerOptions { tls: Some(tls), ..options() }).await;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a root");
        let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { rig, client_config: Arc::new(config), folder }
    }
}

impl Drop for TlsRig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
