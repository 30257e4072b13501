//! A Fujin client written on quinn from the protocol's document, which does one round of everything and reports it.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, RecvStream, SendStream};
use quinn::TokioRuntime;
use quinn_proto::RandomConnectionIdGenerator;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::{pem::PemObject, CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error as TlsError, SignatureScheme};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DRAFT_29: u32 = 0xff00_001d;
const PING: &[u8] = &[11];

/// Believes one certificate, the broker's own.
#[derive(Debug)]
struct Pinned(CertificateDer<'static>, Arc<CryptoProvider>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if *shown == self.0 {
            return Ok(ServerCertVerified::assertion());
        }
        Err(TlsError::General("another certificate".into()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.1.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}

/// One stream.
struct Talk {
    out: SendStream,
    back: RecvStream,
}

impl Talk {
    async fn open(connection: &Connection, greeting: &[u8]) -> Outcome<Self> {
        let (mut out, back) = connection.open_bi().await?;
        out.write_all(greeting).await?;
        Ok(Talk { out, back })
    }

    async fn exactly(&mut self, size: usize) -> Outcome<Vec<u8>> {
        let mut data = vec![0; size];
        self.back.read_exact(&mut data).await?;
        Ok(data)
    }

    async fn byte(&mut self) -> Outcome<u8> {
        Ok(self.exactly(1).await?[0])
    }

    async fn number(&mut self) -> Outcome<u32> {
        Ok(u32::from_be_bytes(self.exactly(4).await?.try_into().unwrap()))
    }

    async fn string(&mut self) -> Outcome<Vec<u8>> {
        let size = self.number().await? as usize;
        self.exactly(size).await
    }

    /// The error of a reply, if it has one.
    async fn error(&mut self) -> Outcome<()> {
        if self.byte().await? == 0 {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&self.string().await?).into())
    }

    async fn confirmed(&mut self, response: u8, id: u32) -> Outcome<()> {
        let got = (self.byte().await?, self.number().await?);
        if got != (response, id) {
            return Err(format!("{got:?} instead of {response} to {id}").into());
        }
        self.error().await
    }

    /// The result of settling one message.
    async fn settled(&mut self, reference: bool) -> Outcome<()> {
        self.number().await?;
        self.error().await?;
        if self.number().await? != 1 {
            return Err("not one result".into());
        }
        self.string().await?;
        match (reference, self.byte().await?) {
            (true, 0) | (false, 1) => Ok(()),
            (_, result) => Err(format!("result {result}").into()),
        }
    }

    async fn leave(mut self) -> Outcome<()> {
        self.out.write_all(&[10]).await?;
        let rest = self.back.read_to_end(64).await?;
        if rest != [10] {
            return Err(format!("{rest:?} instead of a goodbye").into());
        }
        Ok(())
    }
}

struct Round {
    topic: String,
    messages: u32,
    reference: bool,
}

impl Round {
    fn write(&self, id: u32, message: &[u8]) -> Vec<u8> {
        let mut data = [&[3][..], &id.to_be_bytes(), &sized(self.topic.as_bytes())].concat();
        if !self.reference {
            data.extend([0, 0]);
        }
        data.extend(sized(message));
        data
    }

    fn reader(&self, kind: u8) -> Vec<u8> {
        [&[2, kind, 0][..], &sized(self.topic.as_bytes())].concat()
    }

    async fn write_all(&self, connection: &Connection, endpoint: &Endpoint, migrate: bool) -> Outcome<()> {
        let Talk { mut out, back } = Talk::open(connection, &[1, 0, 0, 0, 0]).await?;
        let sending = async {
            for number in 0..self.messages {
                if number == self.messages / 2 {
                    connection.force_key_update();
                    if migrate {
                        endpoint.rebind(UdpSocket::bind("127.0.0.1:0")?)?;
                    }
                }
                out.write_all(&self.write(number, &value(number))).await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(out)
        };
        let (unused, _) = connection.open_bi().await?;
        let mut talk = Talk { out: unused, back };
        let hearing = async {
            for number in 0..self.messages {
                talk.confirmed(2, number).await?;
            }
            Ok(talk)
        };
        let (out, mut talk) = tokio::try_join!(sending, hearing)?;
        talk.out.reset(0u32.into())?;
        Talk { out, back: talk.back }.leave().await
    }

    async fn transact(&self, connection: &Connection) -> Outcome<()> {
        let mut talk = Talk::open(connection, &[1, 0, 0, 0, 0]).await?;
        for end in [6u8, 5] {
            let mut request = vec![4, 0, 0, 0, 1];
            for number in 0..3 {
                request.extend(self.write(2 + number, &value(self.messages + number)));
            }
            request.extend([end, 0, 0, 0, 9]);
            talk.out.write_all(&request).await?;
            for (response, id) in [(3, 1), (2, 2), (2, 3), (2, 4), (end - 1, 9)] {
                talk.confirmed(response, id).await?;
            }
        }
        talk.leave().await
    }

    /// Reads everything by push and acknowledges each message; how many came, and how many out of order.
    async fn subscribe(&self, connection: &Connection) -> Outcome<(usize, usize, usize)> {
        let mut talk = Talk::open(connection, &self.reader(1)).await?;
        let total = (self.messages + 3) as usize;
        let (mut seen, mut settled, mut disordered, mut last) = (HashMap::new(), 0, 0, -1i64);
        if talk.byte().await? != 1 {
            return Err("no reply to CONNECT READER".into());
        }
        talk.error().await?;
        while settled < total {
            if talk.byte().await? == 8 {
                talk.settled(self.reference).await?;
                settled += 1;
                continue;
            }
            let id = talk.string().await?;
            let message = talk.string().await?;
            let text = String::from_utf8(message.clone())?;
            let number: u32 = text.split(' ').nth(1).ok_or("a message nobody wrote")?.parse()?;
            if message != value(number) {
                return Err("a message nobody wrote".into());
            }
            disordered += usize::from(i64::from(number) <= last);
            last = number.into();
            seen.insert(number, ());
            let request = [&[8][..], &number.to_be_bytes(), &1u32.to_be_bytes(), &sized(&id)].concat();
            talk.out.write_all(&request).await?;
        }
        talk.leave().await?;
        Ok((seen.len(), settled, disordered))
    }

    /// Gets one more message by FETCH, gives it back with NACK, gets it again; how often it came.
    async fn pull(&self, connection: &Connection) -> Outcome<usize> {
        let mut writer = Talk::open(connection, &[1, 0, 0, 0, 0]).await?;
        writer.out.write_all(&self.write(1, b"last")).await?;
        writer.confirmed(2, 1).await?;
        let mut talk = Talk::open(connection, &self.reader(2)).await?;
        talk.byte().await?;
        talk.error().await?;
        for outcome in [9u8, 8] {
            let id = loop {
                talk.out.write_all(&[7, 0, 0, 0, 7, 0, 0, 0, 1]).await?;
                match talk.confirmed(7, 7).await {
                    Err(error) if self.reference && error.to_string() == "no messages" => continue,
                    other => other?,
                }
                if talk.number().await? == 1 {
                    break talk.string().await?;
                }
            };
            if talk.string().await? != b"last" {
                return Err("another message".into());
            }
            let request = [&[outcome][..], &8u32.to_be_bytes(), &1u32.to_be_bytes(), &sized(&id)].concat();
            talk.out.write_all(&request).await?;
            if talk.byte().await? != outcome {
                return Err("another reply".into());
            }
            talk.settled(self.reference).await?;
        }
        talk.leave().await?;
        writer.leave().await?;
        Ok(2)
    }
}

fn sized(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_be_bytes()[..], data].concat()
}

fn value(number: u32) -> Vec<u8> {
    format!("message {number} {}", "x".repeat(number as usize % 97)).into_bytes()
}

async fn answer_pings(connection: Connection, pings: Arc<AtomicUsize>) {
    while let Ok((mut out, mut back)) = connection.accept_bi().await {
        if back.read_to_end(16).await.is_ok_and(|asked| asked == PING) {
            pings.fetch_add(1, Ordering::Relaxed);
            let _ = out.write_all(PING).await;
        }
        let _ = out.finish();
    }
}

fn endpoint(own_id: usize) -> Outcome<Endpoint> {
    let mut settings = EndpointConfig::default();
    settings.cid_generator(move || Box::new(RandomConnectionIdGenerator::new(own_id)));
    settings.supported_versions(vec![1, DRAFT_29]);
    Ok(Endpoint::new(settings, None, UdpSocket::bind("127.0.0.1:0")?, Arc::new(TokioRuntime))?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut flags: HashMap<String, String> = HashMap::new();
    let mut given = std::env::args().skip(1).peekable();
    while let Some(name) = given.next() {
        let value = given.next_if(|next| !next.starts_with('-')).unwrap_or_default();
        flags.insert(name, value);
    }
    let flag = |name: &str| flags.get(name).cloned();
    let own_id = flag("-own-id").map_or(Ok(0), |size| size.parse())?;
    let address: SocketAddr = flag("-address").ok_or("-address is missing")?.parse()?;
    let provider = Arc::new(ring::default_provider());
    let certificate = CertificateDer::from_pem_file(flag("-ca").ok_or("-ca is missing")?)?;
    let mut security = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(certificate, provider)))
        .with_no_client_auth();
    security.alpn_protocols = vec![b"fujin".to_vec()];
    let mut settings = ClientConfig::new(Arc::new(QuicClientConfig::try_from(security)?));
    let endpoint = endpoint(own_id)?;
    if flag("-version-2-first").is_some() {
        let mut older = settings.clone();
        older.version(DRAFT_29);
        match endpoint.connect_with(older, address, "localhost")?.await {
            Err(ConnectionError::VersionMismatch) => {}
            other => return Err(format!("{other:?} instead of another version").into()),
        }
    }
    settings.version(1);
    let connection = endpoint.connect_with(settings, address, "localhost")?.await?;
    let pings = Arc::new(AtomicUsize::new(0));
    tokio::spawn(answer_pings(connection.clone(), pings.clone()));
    let round = Round {
        topic: flag("-topic").unwrap_or("interop".into()),
        messages: flag("-messages").map_or(Ok(100), |count| count.parse())?,
        reference: flag("-reference").is_some(),
    };
    let migrate = flag("-migrate").is_some();
    let work = async {
        round.write_all(&connection, &endpoint, migrate).await?;
        round.transact(&connection).await?;
        let found = round.subscribe(&connection).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((found, round.pull(&connection).await?))
    };
    let ((received, settled, disordered), fetched) = tokio::time::timeout(Duration::from_secs(120), work).await??;
    connection.close(0u32.into(), b"done");
    endpoint.wait_idle().await;
    println!(
        "{{\"confirmed\":{},\"received\":{received},\"missing\":{},\"disordered\":{disordered},\"settled\":{settled},\
         \"fetched\":{fetched},\"pings\":{},\"migrated\":{migrate},\"version\":\"v1\"}}",
        round.messages,
        round.messages as usize + 3 - received,
        pings.load(Ordering::Relaxed),
    );
    Ok(())
}
