//! One connection: handshake, then requests until the client leaves.

use crate::execute::{admit, execute, refused};
use crate::handshake::{Agreement, shake_hands};
use crate::inlet::{Fill, Inlet};
use crate::outbox::Outbox;
use crate::server::{Charge, Client};
use crate::wire::{Command, Request};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// Serves a client until it leaves or must go.
pub(crate) async fn serve(client: Arc<Client>) -> io::Result<()> {
    let mut inlet = Inlet::new(client.clone());
    let Some(agreement) = shake_hands(&client, &mut inlet).await? else { return Ok(()) };
    client.begin_transmission();
    let outbox = Arc::new(Outbox::new(client.clone()));
    let connection = Connection { client: client.clone(), agreement: Arc::new(agreement), inlet, outbox };
    let ended = connection.run().await;
    // What is in service is finished and answered, as far as the client still listens.
    client.settled().await;
    ended
}

struct Connection {
    client: Arc<Client>,
    agreement: Arc<Agreement>,
    inlet: Inlet,
    outbox: Arc<Outbox>,
}

impl Connection {
    async fn run(mut self) -> io::Result<()> {
        while let Some(bytes) = self.next_header().await? {
            let bad = || io::Error::new(io::ErrorKind::InvalidData, "no request where one belongs");
            let request = Request::decode(&bytes).ok_or_else(bad)?;
            if request.command == Command::Disconnect {
                return Ok(());
            }
            self.start(request).await?;
        }
        Ok(())
    }

    /// The next request's bytes; nothing if the client or the server ends here.
    async fn next_header(&mut self) -> io::Result<Option<[u8; Request::LEN]>> {
        loop {
            if self.client.server.is_stopping() {
                return Ok(None);
            }
            if let Some(bytes) = self.inlet.take() {
                return Ok(Some(bytes));
            }
            let settle = self.inlet.is_drained();
            if settle {
                // All that arrived was started: let it run, and send what became ready in one piece.
                self.client.env().yield_now().await;
                self.outbox.send_now();
            }
            match self.inlet.fill()? {
                Fill::Some => {}
                Fill::End if self.inlet.buffered() == 0 => return Ok(None),
                Fill::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Fill::Nothing if settle => self.inlet.wait(false).await?,
                Fill::Nothing => {}
            }
        }
    }

    /// Takes a request's data and hands it to a task.
    async fn start(&mut self, request: Request) -> io::Result<()> {
        let admitted = admit(&self.agreement, &request);
        let writes = request.command == Command::Write;
        if let Err(refusal) = admitted {
            if writes {
                self.inlet.skip(u64::from(request.len)).await?;
            }
            let charge = self.charge(0).await;
            let reply = refused(&self.agreement, &request, &refusal);
            let outbox = self.outbox.clone();
            self.client.spawner.spawn(async move { outbox.deliver(reply, charge).await });
            return Ok(());
        }
        let holds_data = writes || request.command == Command::Read;
        let charge = self.charge(if holds_data { request.len } else { 0 }).await;
        let data = if writes { self.inlet.payload(request.len as usize).await? } else { Bytes::new() };
        let (agreement, outbox) = (self.agreement.clone(), self.outbox.clone());
        self.client.spawner.spawn(async move {
            let reply = execute(&agreement, &request, data).await;
            outbox.deliver(reply, charge).await;
        });
        Ok(())
    }

    /// Waits until there is memory for a request. What became ready meanwhile must leave, for it holds memory.
    async fn charge(&mut self, len: u32) -> Charge {
        if let Some(charge) = self.client.try_charge(len) {
            return charge;
        }
        self.client.env().yield_now().await;
        self.outbox.send_now();
        self.client.charge(len).await
    }
}
