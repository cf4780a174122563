//! Effects of a decision.

use protocol::event::EventAccepted;
use protocol::id::RunId;

use crate::inputs::RunInputs;
use crate::intake::IntakeError;

/// Effects of a decision that the store does not carry out.
#[derive(Default)]
pub(crate) struct DecisionEffects {
    /// Cause of a refused event.
    pub(crate) refused: Option<IntakeError>,
    /// Answer to the sender. The plan holds the same as text.
    pub(crate) answer: Option<EventAccepted>,
    /// Runs that the event cancels.
    pub(crate) cancelled: Vec<RunId>,
    /// Run that starts as soon as the event is committed.
    pub(crate) run: Option<Box<RunInputs>>,
    /// A pause holds the run: its resume dispatches it.
    pub(crate) is_held: bool,
}

impl DecisionEffects {
    /// Effects of a refusal: nothing is stored.
    pub(super) fn refusal(reason: IntakeError) -> Self {
        Self {
            refused: Some(reason),
            ..Self::default()
        }
    }
}
