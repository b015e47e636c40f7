//! Web sockets: passes the request for one on, and then its bytes both ways. IO.

use std::sync::Arc;

use http::{Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;

use super::{admitted, directory, hop, invalid_header, unanswered};
use crate::{
    Door, admission::Refusal, body::Upload, broken::Question, class::Class, connections::Place, control,
    fence::Stamp, mend, refusal::DoorBody,
};

/// Passes on a request for a WebSocket, and its bytes after that.
pub(super) async fn open(
    door: &Arc<Door>,
    mut request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let stamp = Stamp::of(request.headers()).map_err(invalid_header)?;
    let client = upgrade::on(&mut request);
    let place = request.extensions().get::<Place>().cloned();
    let (parts, body) = request.into_parts();
    let directory = directory(door, &parts).await?;
    let (way, mut sender, call) = admitted(door, &Class::Tunnel, stamp.as_ref(), &directory).await?;
    let outgoing = hop::outgoing(parts, way.address, &door.upstream.get(), true);
    let outgoing = Request::from_parts(outgoing, Upload::new(door, body).boxed_unsync());
    let question = Question { boot_id: way.boot_id, directory, asked: Timestamp::now() };
    let answer = tokio::select! {
        answer = sender.send_request(outgoing) => answer,
        () = call.cut.cancelled() => return Err(control::refused(Refusal::Gated(door.admission.gate()))),
    };
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Err(unanswered(door, &question.boot_id, &error).await),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return mend::heard(door, &question, answer).await.map(hop::passed);
    }
    let tunnel = tunnel(client, upgrade::on(&mut answer));
    let shutdown = door.shutdown.clone();
    door.tracker.spawn(async move {
        tokio::select! {
            () = tunnel => {}
            () = call.cut.cancelled() => {}
            () = shutdown.cancelled() => {}
        }
        drop((call, place));
    });
    *answer.version_mut() = Version::HTTP_11;
    Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
}

/// Copies both ways until either side ends.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    let (client, server) = match tokio::try_join!(client, server) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgrade did not come about");
            return;
        }
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "an upgraded connection broke");
    }
}
