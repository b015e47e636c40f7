//! Answers to permissions and questions.

use berth_wire::api::{PermissionAnswer, PermissionDecision, QuestionAnswer};
use uuid::Uuid;

use super::{App, AppError, invalid};
use crate::store::{Answer, Answered};

impl App {
    pub(crate) async fn answer_permission(
        &self,
        session_id: Uuid,
        id: &str,
        body: PermissionAnswer,
    ) -> Result<(), AppError> {
        if body.message.as_deref().is_some_and(|message| message.trim().is_empty()) {
            return Err(invalid("message", "must not be blank: leave it out, or say what to do instead"));
        }
        if body.message.is_some() && body.decision != PermissionDecision::Reject {
            return Err(invalid(
                "message",
                "goes only with reject: leave it out, or send it as a prompt of its own",
            ));
        }
        let answer = Answer::Permission { decision: body.decision, message: body.message };
        self.answer(session_id, id, answer, "permission").await
    }

    pub(crate) async fn answer_question(
        &self,
        session_id: Uuid,
        id: &str,
        body: QuestionAnswer,
    ) -> Result<(), AppError> {
        if let Some(index) = body.answers.iter().flatten().position(Vec::is_empty) {
            return Err(invalid(
                format!("answers[{index}]"),
                "must have at least one label; null instead of the list rejects the request",
            ));
        }
        self.answer(session_id, id, Answer::Question { answers: body.answers }, "question").await
    }

    async fn answer(
        &self,
        session_id: Uuid,
        id: &str,
        answer: Answer,
        what: &'static str,
    ) -> Result<(), AppError> {
        self.session(session_id).await?;
        match self.store.answer_ask(session_id, id, answer).await? {
            Answered::Accepted => Ok(()),
            Answered::NotFound => Err(AppError::NotFound { what, id: id.to_owned() }),
            Answered::Conflict => Err(AppError::AlreadyResolved { what, id: id.to_owned() }),
            Answered::WrongCount { questions } => {
                Err(invalid("answers", format!("must have one list for each of the {questions} questions")))
            }
        }
    }
}
