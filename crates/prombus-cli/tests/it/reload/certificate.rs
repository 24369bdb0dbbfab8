//! A certificate is replaced under open connections.

use super::{Reloading, tokens, until};
use crate::long_form::alone;
use crate::ws_client::PATIENCE;
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::task::block_in_place;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Connections that are open while the certificate is replaced.
const CONNECTIONS: usize = 20;

/// A certificate with this year of expiry; returns the PEM of the certificate and of the key, and the DER.
fn certificate(expires: i32) -> (String, String, CertificateDer<'static>) {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(expires, 5, 6);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    (made.pem(), key.serialize_pem(), made.der().clone())
}

/// Connects, trusting only this certificate. `None` if the server presents another one.
async fn connect(address: SocketAddr, trusted: &CertificateDer<'static>) -> Option<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await.ok()
}

async fn publish(socket: &mut WebSocketStream<TlsStream<TcpStream>>) {
    let frame = json!({"op": "PUBLISH", "topic": "a", "payload": 1, "corr": 7});
    socket.send(Message::text(frame.to_string())).await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert!(answer.to_text().unwrap().contains("\"OK\""), "{answer}");
}

#[test]
fn a_replaced_certificate_drops_no_connection_and_new_handshakes_get_it() {
    alone(replaced());
}

async fn replaced() {
    let folder = crate::support::TempFolder::new();
    let (cert, key, first) = certificate(2090);
    let (cert, key) = (folder.file("cert.pem", &cert), folder.file("key.pem", &key));
    let config = format!("{}[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n", tokens(&["one"]));
    let it = block_in_place(|| Reloading::start(&config, &[]));
    let port = it.serving.addresses()[0].rsplit(':').next().unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut sockets = Vec::new();
    for _ in 0..CONNECTIONS {
        let tls = connect(address, &first).await.expect("the first certificate");
        let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/ws", tls).await.unwrap();
        let auth = json!({"op": "AUTH", "token": "one"});
        socket.send(Message::text(auth.to_string())).await.unwrap();
        socket.next().await.unwrap().unwrap();
        publish(&mut socket).await;
        sockets.push(socket);
    }

    let (new_cert, new_key, second) = certificate(2091);
    std::fs::write(&cert, &new_cert).unwrap();
    let log = block_in_place(|| it.hang_up());
    assert!(log.contains("the key does not belong to the certificate"), "{log}");
    assert!(log.contains("nothing was changed"), "{log}");
    assert!(connect(address, &first).await.is_some(), "the first certificate stays");

    std::fs::write(&key, &new_key).unwrap();
    let log = block_in_place(|| it.hang_up());
    assert!(log.contains("reloaded: certificate replaced (expires 2091-05-06T00:00:00"), "{log}");
    assert!(connect(address, &first).await.is_none(), "the first certificate is no longer used");
    assert!(connect(address, &second).await.is_some());
    for socket in &mut sockets {
        publish(socket).await;
    }

    let (old_cert, old_key, _) = certificate(2001);
    std::fs::write(&cert, &old_cert).unwrap();
    std::fs::write(&key, &old_key).unwrap();
    block_in_place(|| it.hang_up());
    let warning = "expired at 2001-05-06T00:00:00";
    block_in_place(|| until(warning, || it.serving.log().contains(warning)));
    assert!(it.serving.log().lines().any(|line| line.contains(" WARN ") && line.contains(warning)));
    drop(it.folder);
}
