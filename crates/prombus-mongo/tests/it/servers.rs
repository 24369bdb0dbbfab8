//! Real MongoDB servers, which are started on free ports and end with the test process.

use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, ServerAddress};
use mongodb::{Client, Database};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name of a replica set with a very small oplog.
pub const SHORT_OPLOG: &str = "short-oplog";

/// One `mongod`. It ends when this is dropped, and also when the test process dies: a shell that waits for the end of its input kills it.
pub struct Mongod {
    shell: Child,
    alive: Option<ChildStdin>,
    pub port: u16,
    folder: PathBuf,
    replica_set: Option<&'static str>,
}

const WATCH: &str = r#"
mongod="$1"; pid_file="$2"; shift 2
"$mongod" "$@" >/dev/null 2>&1 </dev/null &
echo $! > "$pid_file"
read -r line; ended=$?
kill -9 $(cat "$pid_file") 2>/dev/null
wait
# The end of the input is the end of the test: the data is of no use any more.
folder="${pid_file%/pid}"
if [ "$ended" -ne 0 ]; then rm -rf "$folder"; rmdir "$(dirname "$folder")" 2>/dev/null; fi
"#;

fn mongod_path() -> PathBuf {
    if let Some(path) = std::env::var_os("PROMBUS_TEST_MONGOD") {
        return path.into();
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = workspace.join("target/tools/mongod-6.0.5/mongod");
    assert!(path.exists(), "no mongod at {}: run tests/mongodb/install", path.display());
    path
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Mongod {
    pub fn start(folder: &Path, port: u16, replica_set: Option<&'static str>) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let mut command = Command::new("sh");
        command.arg("-c").arg(WATCH).arg("sh").arg(mongod_path()).arg(folder.join("pid"));
        command.args([
            "--bind_ip",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--wiredTigerCacheSizeGB",
            "0.25",
        ]);
        command.arg("--dbpath").arg(folder).arg("--logpath").arg(folder.join("log"));
        command.args(["--nounixsocket", "--setParameter", "diagnosticDataCollectionEnabled=false"]);
        if let Some(name) = replica_set {
            let oplog_mb = if name == SHORT_OPLOG { "1" } else { "128" };
            command.args(["--replSet", name, "--oplogSize", oplog_mb]);
            if name == SHORT_OPLOG {
                // The oplog is kept since the newest checkpoint, which by default is written once a minute.
                command.args(["--syncdelay", "1"]);
            }
        }
        let mut shell =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let alive = shell.stdin.take();
        Self { shell, alive, port, folder: folder.to_owned(), replica_set }
    }

    /// kill -9. The data stays.
    pub fn kill(&mut self) {
        if let Some(mut alive) = self.alive.take() {
            let _ = alive.write_all(b"\n");
        }
        self.shell.wait().unwrap();
    }

    /// Restarts it on the same data.
    pub fn restart(&mut self) {
        *self = Self::start(&self.folder, self.port, self.replica_set);
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        if self.alive.take().is_some() {
            let _ = self.shell.wait();
        }
    }
}

pub fn temporary_folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("prombus-mongo-{name}-{}-{}", std::process::id(), free_port()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A client of one server, even while that server is not the primary.
pub async fn direct(port: u16) -> Client {
    let options = ClientOptions::builder()
        .hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".to_owned(), port: Some(port) }])
        .direct_connection(true)
        .server_selection_timeout(Duration::from_secs(2))
        .build();
    Client::with_options(options).unwrap()
}

pub async fn admin(port: u16, command: Document) -> mongodb::error::Result<Document> {
    direct(port).await.database("admin").run_command(command).await
}

async fn wait_for_answer(port: u16) {
    let started = Instant::now();
    while admin(port, doc! { "ping": 1 }).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "mongod on port {port} does not answer");
    }
}

/// Three servers as one replica set.
pub struct ReplicaSet {
    pub members: Vec<Mongod>,
    pub url: String,
}

impl ReplicaSet {
    pub async fn start() -> Self {
        let folder = temporary_folder("set");
        let ports = [free_port(), free_port(), free_port()];
        let members = ports.map(|port| Mongod::start(&folder.join(port.to_string()), port, Some("rs0")));
        for port in ports {
            wait_for_answer(port).await;
        }
        let hosts = ports.iter().enumerate();
        let hosts: Vec<_> =
            hosts.map(|(id, port)| doc! { "_id": id as i32, "host": format!("127.0.0.1:{port}") }).collect();
        let config = doc! {
            "_id": "rs0", "members": hosts,
            "settings": { "electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 500 },
        };
        admin(ports[0], doc! { "replSetInitiate": config }).await.unwrap();
        let list = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        let set = Self { members: members.into(), url: format!("mongodb://{list}/?replicaSet=rs0") };
        set.primary().await;
        set
    }

    /// The index of the primary among the members.
    pub async fn primary(&self) -> usize {
        let started = Instant::now();
        loop {
            for (at, member) in self.members.iter().enumerate() {
                let hello = admin(member.port, doc! { "hello": 1 }).await;
                if hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)) {
                    return at;
                }
            }
            assert!(started.elapsed() < Duration::from_secs(60), "no primary was elected");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The standalone server that tests of this process share.
pub fn shared_url() -> &'static str {
    static URL: OnceLock<(String, Option<Mongod>)> = OnceLock::new();
    let (url, _) = URL.get_or_init(|| {
        if let Ok(url) = std::env::var("PROMBUS_TEST_MONGODB_URL") {
            return (url, None);
        }
        let port = free_port();
        let server = Mongod::start(&temporary_folder("one"), port, None);
        on_new_runtime(wait_for_answer(port));
        (format!("mongodb://127.0.0.1:{port}"), Some(server))
    });
    url
}

/// The replica set that tests of this process share.
pub fn shared_set_url() -> &'static str {
    static SET: OnceLock<ReplicaSet> = OnceLock::new();
    &SET.get_or_init(|| on_new_runtime(ReplicaSet::start())).url
}

/// Runs a future to completion, whatever the caller's runtime.
pub fn on_new_runtime<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || tokio::runtime::Runtime::new().unwrap().block_on(future);
        scope.spawn(run).join().unwrap()
    })
}

/// A name that no other test uses.
pub fn fresh_database() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Drops a database when a test is done with it.
pub struct DropDatabase(pub String, pub String);

impl Drop for DropDatabase {
    fn drop(&mut self) {
        let (url, name) = (self.0.clone(), self.1.clone());
        on_new_runtime(async move {
            if let Ok(client) = Client::with_uri_str(&url).await {
                let _ = client.database(&name).drop().await;
            }
        });
    }
}

pub async fn open_database(url: &str, name: &str) -> Database {
    Client::with_uri_str(url).await.unwrap().database(name)
}
