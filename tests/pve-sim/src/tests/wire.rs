//! Over real sockets: the control API and the life of a connection.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{SECRET, World, cluster};

/// Sends bytes and reads until the server closes or has answered `answers` times.
async fn talk(url: &str, text: &str, answers: usize) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut got = String::new();
    let mut chunk = [0; 4096];
    while got.matches("HTTP/1.1 ").count() < answers || !got.ends_with('}') {
        let length = stream.read(&mut chunk).await.unwrap();
        if length == 0 {
            break;
        }
        got.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
    }
    got
}

fn request(method: &str, path: &str, body: &str) -> String {
    let token = format!("Authorization: PVEAPIToken=root@pam!full={SECRET}\r\n");
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\n{token}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_ends_after_an_error() {
    let world = World::new(cluster().insecure_http()).await;
    let good = request("GET", "/api2/json/version", "");
    let bad = request("GET", "/api2/json/nosuch", "");
    let got = talk(world.sim.url(), &format!("{good}{good}{bad}{good}"), 4).await;
    assert_eq!(got.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{got}");
    assert_eq!(
        got.matches("HTTP/1.1 501 Method 'GET /nosuch' not implemented\r\n")
            .count(),
        1
    );
    assert!(got.contains("Connection: close\r\n"));
}

#[tokio::test]
async fn the_control_api_sets_faults_shows_the_log_and_stays_while_the_api_is_away() {
    let world = World::new(cluster().insecure_http()).await;
    let control = world.sim.control_url();
    let fault = r#"{"method":"GET","path":"/version","effect":"lost_reply"}"#;
    talk(control, &request("POST", "/_sim/faults/requests", fault), 1).await;
    let lost = talk(
        world.sim.url(),
        &request("GET", "/api2/json/version", ""),
        1,
    )
    .await;
    assert_eq!(lost, "");
    let log = talk(control, &request("GET", "/_sim/requests", ""), 1).await;
    assert!(
        log.contains(r#""GET /version":1"#) && !log.contains(SECRET),
        "{log}"
    );
    talk(
        control,
        &request("PUT", "/_sim/reachable", r#"{"reachable":false}"#),
        1,
    )
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(
        TcpStream::connect(world.sim.url().trim_start_matches("http://"))
            .await
            .is_err()
    );
    talk(
        control,
        &request("PUT", "/_sim/vms/100/faults", r#"{"unplug_stuck":2}"#),
        1,
    )
    .await;
    assert_eq!(world.sim.with_vm(100, |vm| vm.faults.unplug_stuck), Some(2));
    let unknown = talk(
        control,
        &request("PUT", "/_sim/vms/100/faults", r#"{"nonsense":1}"#),
        1,
    )
    .await;
    assert!(unknown.starts_with("HTTP/1.1 400"), "{unknown}");
}

/// The SHA-256 of the certificate that is presented, and whether a request on an open connection is still answered.
async fn presented(world: &World) -> String {
    let sim = &world.sim;
    let got = talk(sim.control_url(), &request("GET", "/_sim/requests", ""), 1).await;
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    world.sim.sim.certificates.current().unwrap().fingerprint
}

#[tokio::test]
async fn another_certificate_is_presented_once_it_was_prepared() {
    let world = World::new(cluster()).await;
    let first = presented(&world).await;
    assert_eq!(first, world.sim.fingerprint());
    let control = world.sim.control_url();
    let post = |what: &str| request("POST", &format!("/_sim/certificate/{what}"), "");
    let early = talk(control, &post("present"), 1).await;
    assert!(early.starts_with("HTTP/1.1 400"), "{early}");
    let next = talk(control, &post("next"), 1).await;
    assert!(next.contains("BEGIN CERTIFICATE"), "{next}");
    assert_eq!(presented(&world).await, first);
    let now = talk(control, &post("present"), 1).await;
    assert!(now.starts_with("HTTP/1.1 200"), "{now}");
    assert_ne!(presented(&world).await, first);
}
