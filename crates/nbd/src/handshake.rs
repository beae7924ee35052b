//! The handshake: options, until the client has chosen an export.

use crate::inlet::Inlet;
use crate::options::{self, Choice, Contexts, Header, Kind, ReplyKind, info, transmission};
use crate::server::{Client, Export};
use crate::wire::PAYLOAD_LEN_MAX;
use ashlar_units::BLOCK;
use std::io;
use std::sync::Arc;

/// Options in one handshake; a client that needs more is up to something.
const OPTIONS_MAX: usize = 1024;
/// Number by which replies to BLOCK_STATUS name `base:allocation`.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// What was agreed.
pub(crate) struct Agreement {
    pub(crate) export: Arc<Export>,
    /// Replies to reads are structured.
    pub(crate) structured: bool,
    /// `base:allocation` may be asked for.
    pub(crate) allocation: bool,
}

/// A handshake under way.
struct Handshake<'a> {
    client: &'a Arc<Client>,
    inlet: &'a mut Inlet,
    no_zeroes: bool,
    structured: bool,
    /// For which export `base:allocation` was agreed.
    allocation: Option<String>,
}

/// What an option led to.
enum Next {
    Go(Arc<Export>),
    More,
    End,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Talks until the client has chosen an export (`Some`) or leaves.
pub(crate) async fn shake_hands(client: &Arc<Client>, inlet: &mut Inlet) -> io::Result<Option<Agreement>> {
    let mut greeting = [0; 18];
    let flags = options::FIXED_NEWSTYLE | options::NO_ZEROES;
    let words = [&options::SERVER_MAGIC.to_be_bytes()[..], &options::OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()];
    greeting.copy_from_slice(&words.concat());
    client.channel.write_all(&greeting).await?;
    let answer = u32::from_be_bytes(inlet.array().await?);
    if answer & !u32::from(flags) != 0 {
        return Err(broken(format!("unknown handshake flags {answer:#x}")));
    }
    let no_zeroes = answer & u32::from(options::NO_ZEROES) != 0;
    let mut handshake = Handshake { client, inlet, no_zeroes, structured: false, allocation: None };
    for _ in 0..OPTIONS_MAX {
        let header =
            Header::decode(&handshake.inlet.array().await?).ok_or_else(|| broken("no option where one belongs"))?;
        if header.len > options::OPTION_LEN_MAX {
            let story = format!("an option of {} bytes; at most {} are allowed", header.len, options::OPTION_LEN_MAX);
            handshake.reply(header.kind, ReplyKind::ErrTooBig, story.as_bytes()).await?;
            return Err(broken(story));
        }
        let mut data = vec![0; header.len as usize];
        handshake.inlet.exact(&mut data).await?;
        match handshake.option(header.kind, &data).await? {
            Next::More => {}
            Next::End => return Ok(None),
            Next::Go(export) => {
                let allocation = handshake.allocation.as_ref() == Some(&export.name);
                return Ok(Some(Agreement { export, structured: handshake.structured, allocation }));
            }
        }
    }
    Err(broken("too many options"))
}

impl Handshake<'_> {
    async fn reply(&self, option: Kind, kind: ReplyKind, data: &[u8]) -> io::Result<()> {
        self.client.channel.write_all(&options::reply(option, kind, data)).await
    }

    async fn option(&mut self, kind: Kind, data: &[u8]) -> io::Result<Next> {
        let bare = self.client.server.tls.is_some() && !self.client.channel.is_encrypted();
        match kind {
            Kind::ExportName if bare => return Err(broken("the client does not encrypt")),
            Kind::StartTls => self.start_tls(data).await?,
            Kind::Abort => {
                // The client may be gone already.
                let _ = self.reply(kind, ReplyKind::Ack, &[]).await;
                return Ok(Next::End);
            }
            _ if bare => self.reply(kind, ReplyKind::ErrTlsRequired, b"use STARTTLS first").await?,
            Kind::ExportName => {
                let name = std::str::from_utf8(data).map_err(|_| broken("the name of the export is not UTF-8"))?;
                // This option has no way to say no.
                let export = self.client.server.export(name).ok_or_else(|| broken(format!("no export {name:?}")))?;
                let mut answer = self.size_and_flags(&export);
                if !self.no_zeroes {
                    answer.resize(answer.len() + 124, 0);
                }
                self.client.channel.write_all(&answer).await?;
                return Ok(Next::Go(export));
            }
            Kind::List if !data.is_empty() => self.reply(kind, ReplyKind::ErrInvalid, b"LIST takes no data").await?,
            Kind::List => {
                for export in &self.client.server.exports {
                    let entry = [options::text(&export.name), export.description.clone().into_bytes()].concat();
                    self.reply(kind, ReplyKind::Server, &entry).await?;
                }
                self.reply(kind, ReplyKind::Ack, &[]).await?;
            }
            Kind::StructuredReply if data.is_empty() => {
                self.structured = true;
                self.reply(kind, ReplyKind::Ack, &[]).await?;
            }
            Kind::StructuredReply => {
                self.reply(kind, ReplyKind::ErrInvalid, b"STRUCTURED_REPLY takes no data").await?;
            }
            Kind::Info | Kind::Go => match Choice::decode(data) {
                Err(story) => self.reply(kind, ReplyKind::ErrInvalid, story.as_bytes()).await?,
                Ok(choice) => match self.client.server.export(&choice.name) {
                    None => {
                        let story = format!("there is no export {:?}", choice.name);
                        self.reply(kind, ReplyKind::ErrUnknown, story.as_bytes()).await?;
                    }
                    Some(export) => {
                        self.describe(kind, &export, &choice.wanted).await?;
                        if kind == Kind::Go {
                            return Ok(Next::Go(export));
                        }
                    }
                },
            },
            Kind::ListMetaContext | Kind::SetMetaContext => self.contexts(kind, data).await?,
            Kind::Other(_) => self.reply(kind, ReplyKind::ErrUnsupported, b"this server does not know it").await?,
        }
        Ok(Next::More)
    }

    async fn start_tls(&mut self, data: &[u8]) -> io::Result<()> {
        let refuse = |kind, story: &'static [u8]| self.reply(Kind::StartTls, kind, story);
        let Some(tls) = &self.client.server.tls else {
            return refuse(ReplyKind::ErrPolicy, b"no certificate is configured").await;
        };
        if !data.is_empty() || self.client.channel.is_encrypted() {
            return refuse(ReplyKind::ErrInvalid, b"STARTTLS takes no data and comes once").await;
        }
        self.reply(Kind::StartTls, ReplyKind::Ack, &[]).await?;
        // Nothing that was said before counts.
        (self.structured, self.allocation) = (false, None);
        // In a handshake the inlet takes from the socket what it is asked for and no more. So bytes in the clear behind this
        // option, which somebody in between may have put there, are for TLS to choke on.
        debug_assert_eq!(self.inlet.buffered(), 0);
        self.client.channel.start_tls(tls).await
    }

    fn size_and_flags(&self, export: &Export) -> Vec<u8> {
        let mut flags = transmission::HAS_FLAGS | transmission::CAN_MULTI_CONN | transmission::SEND_FLUSH;
        if export.read_only {
            flags |= transmission::READ_ONLY;
        } else {
            flags |= transmission::SEND_FUA | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO;
            if export.device.can_trim() {
                flags |= transmission::SEND_TRIM;
            }
        }
        if self.structured {
            flags |= transmission::SEND_DF;
        }
        [&export.device.size().0.to_be_bytes()[..], &flags.to_be_bytes()].concat()
    }

    async fn describe(&self, option: Kind, export: &Export, wanted: &[u16]) -> io::Result<()> {
        let item = |kind: u16, data: &[u8]| [&kind.to_be_bytes(), data].concat();
        self.reply(option, ReplyKind::Info, &item(info::EXPORT, &self.size_and_flags(export))).await?;
        // Any byte may be the first or last of a request, but whole blocks are served best.
        let sizes = [1, BLOCK.0 as u32, PAYLOAD_LEN_MAX].map(u32::to_be_bytes).concat();
        self.reply(option, ReplyKind::Info, &item(info::BLOCK_SIZE, &sizes)).await?;
        if wanted.contains(&info::NAME) {
            self.reply(option, ReplyKind::Info, &item(info::NAME, export.name.as_bytes())).await?;
        }
        if wanted.contains(&info::DESCRIPTION) {
            self.reply(option, ReplyKind::Info, &item(info::DESCRIPTION, export.description.as_bytes())).await?;
        }
        self.reply(option, ReplyKind::Ack, &[]).await
    }

    async fn contexts(&mut self, kind: Kind, data: &[u8]) -> io::Result<()> {
        if kind == Kind::SetMetaContext {
            self.allocation = None;
        }
        if !self.structured {
            return self.reply(kind, ReplyKind::ErrInvalid, b"negotiate structured replies first").await;
        }
        let contexts = match Contexts::decode(data) {
            Ok(contexts) => contexts,
            Err(story) => return self.reply(kind, ReplyKind::ErrInvalid, story.as_bytes()).await,
        };
        let Some(export) = self.client.server.export(&contexts.name) else {
            return self.reply(kind, ReplyKind::ErrUnknown, b"there is no such export").await;
        };
        let listing = kind == Kind::ListMetaContext;
        let all = listing && (contexts.queries.is_empty() || contexts.queries.iter().any(|query| query == "base:"));
        if all || contexts.queries.iter().any(|query| query == options::BASE_ALLOCATION) {
            let id = if listing { 0 } else { BASE_ALLOCATION_ID };
            let entry = [&id.to_be_bytes(), options::BASE_ALLOCATION.as_bytes()].concat();
            if !listing {
                self.allocation = Some(export.name.clone());
            }
            self.reply(kind, ReplyKind::MetaContext, &entry).await?;
        }
        self.reply(kind, ReplyKind::Ack, &[]).await
    }
}
