//! An HTTP server that sends prepared bytes as responses, and records the requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A response, in pieces that arrive one by one.
#[derive(Clone)]
pub struct Answer {
    pieces: Vec<Vec<u8>>,
    closes: bool,
}

impl Answer {
    /// A whole response.
    pub fn json(status: &str, body: &str) -> Self {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        Self { pieces: vec![text.into_bytes()], closes: false }
    }

    /// A response of these chunks; without `is_whole` it breaks off after them.
    pub fn chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, is_whole: bool) -> Self {
        let mut pieces = vec![b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()];
        for chunk in chunks {
            pieces.push([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        }
        if is_whole {
            pieces.push(b"0\r\n\r\n".to_vec());
        }
        Self { pieces, closes: !is_whole }
    }

    /// The same response, after which the connection is closed.
    pub fn then_close(self) -> Self {
        Self { closes: true, ..self }
    }
}

/// The server.
pub struct Scripted {
    pub url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Responds to the requests of all connections with these responses, in turn.
    pub async fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            let answers = Arc::new(Mutex::new(answers.into_iter()));
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answers) = (Arc::clone(&seen), Arc::clone(&answers));
                tokio::spawn(async move {
                    let next = || answers.lock().unwrap().next();
                    answer_all(stream, &seen, next).await;
                });
            }
        });
        Self { url, requests }
    }

    /// The first lines of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn answer_all(mut stream: TcpStream, seen: &Mutex<Vec<String>>, next: impl Fn() -> Option<Answer>) {
    stream.set_nodelay(true).unwrap();
    while let Some(first_line) = read_request(&mut stream).await {
        seen.lock().unwrap().push(first_line);
        let Some(answer) = next() else { return };
        for piece in answer.pieces {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
            // The client reads each piece separately.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if answer.closes {
            return;
        }
    }
}

/// Reads a request with its body; returns its first line.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let head_end = loop {
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(request[..head_end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    while request.len() < head_end + length.unwrap_or(0) {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    Some(head.lines().next()?.to_owned())
}
