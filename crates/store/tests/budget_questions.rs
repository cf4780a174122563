//! Questions whether a budget is raised for a run.

use std::time::Duration;

use domain::budget::{Amount, Budget, BudgetExceeded, BudgetReached, BudgetWindow};
use domain::platform_action::ApprovalVerdict;
use domain::run::Run;
use futures_util::future::join_all;
use protocol::budget::BudgetScope;
use store::{
    AnswerDelivery, AskBudget, BudgetLine, BudgetQuestion, BudgetRefusal, CloseBudgetQuestion,
    DeliverAnswer, ReserveBudget, Unanswerable,
};
use uuid::Uuid;

use crate::support::{StoreFixture, audit, on_both};

on_both!(
    raise_lifts_limit_for_its_run_only,
    concurrent_calls_ask_one_question,
    ends_of_questions_extend_deadline_once,
);

const MAX_WAIT_MS: i64 = 60_000;
const BEGIN: i64 = 1_000_000;

/// Ten tokens of the workspace.
fn line(bench: &StoreFixture) -> BudgetLine {
    BudgetLine {
        budget: Budget {
            name: "b".to_owned(),
            scope: BudgetScope::Workspace,
            only: None,
            window: BudgetWindow::Lifetime,
            calls: None,
            tokens: Some(10),
            cost_micros: None,
            wall_ms: None,
            reached: BudgetReached::Pause {
                max_wait_ms: MAX_WAIT_MS,
            },
        },
        subject: format!("{0}/{0}", bench.workspace),
        window_start: 0,
        resets_at: None,
    }
}

async fn reserve(bench: &StoreFixture, run: &Run, tokens: u64) -> Result<(), BudgetRefusal> {
    let reserve = ReserveBudget {
        call_id: Uuid::now_v7(),
        run_id: run.id,
        lines: vec![line(bench)],
        amount: Amount {
            tokens,
            ..Amount::default()
        },
        before: Amount::default(),
        lease: Duration::from_hours(1),
    };
    bench.write(reserve).await.unwrap()
}

async fn ask(bench: &StoreFixture, run: &Run, exceeded: BudgetExceeded, at: i64) -> BudgetQuestion {
    let ask = AskBudget {
        id: Uuid::now_v7(),
        workspace: bench.workspace.clone(),
        run_id: run.id,
        line: line(bench),
        exceeded,
        at,
    };
    bench.write(ask).await.unwrap()
}

fn exceeded() -> BudgetExceeded {
    BudgetExceeded {
        budget: "b".to_owned(),
        what: "tokens",
        limit: 10,
        used: 10,
        more: 5,
        resets_at: None,
    }
}

#[track_caller]
fn opened(question: BudgetQuestion) -> String {
    match question {
        BudgetQuestion::Open { id, .. } => id,
        other => panic!("{other:?}"),
    }
}

async fn give(
    bench: &StoreFixture,
    run: &Run,
    id: &str,
    raised_to: Option<u64>,
    at: i64,
) -> AnswerDelivery {
    let answer = DeliverAnswer {
        workspace: bench.workspace.clone(),
        id: id.to_owned(),
        run_id: run.id,
        token_sha256: None,
        raised_to,
        verdict: ApprovalVerdict::Declined,
        approval: None,
        answer: "{}".to_owned(),
        answer_sha256: "hash".to_owned(),
        audit: audit(Uuid::now_v7()),
        at,
    };
    bench.write(answer).await.unwrap()
}

async fn raise_lifts_limit_for_its_run_only(bench: StoreFixture) {
    let (run, other) = (bench.running("e-1").await, bench.running("e-2").await);
    assert_eq!(reserve(&bench, &run, 10).await, Ok(()));
    let refused = reserve(&bench, &run, 5).await.unwrap_err();
    assert_eq!(refused.exceeded, exceeded());
    let id = opened(ask(&bench, &run, refused.exceeded, BEGIN).await);
    let found = bench.interactions().find_interaction(&bench.workspace, &id);
    let found = found.await.unwrap().unwrap();
    assert_eq!(found.budget.unwrap().limit, 10);

    let given = give(&bench, &run, &id, Some(15), BEGIN + 1).await;
    assert_eq!(given, AnswerDelivery::Stored);
    // A refusal that is older than the raise is tried again.
    let question = ask(&bench, &run, exceeded(), BEGIN + 2).await;
    assert_eq!(question, BudgetQuestion::Raised);
    reserve(&bench, &other, 1).await.unwrap_err();
    assert_eq!(reserve(&bench, &run, 5).await, Ok(()));
    let refused = reserve(&bench, &run, 1).await.unwrap_err();
    assert_eq!((refused.exceeded.limit, refused.exceeded.used), (15, 15));
    opened(ask(&bench, &run, refused.exceeded, BEGIN + 3).await);

    bench.end(&other, 0).await;
    let question = ask(&bench, &other, exceeded(), BEGIN).await;
    assert_eq!(question, BudgetQuestion::RunOver);
}

async fn concurrent_calls_ask_one_question(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let asks = (0..8).map(|_| ask(&bench, &run, exceeded(), BEGIN));
    let ids: Vec<_> = join_all(asks).await.into_iter().map(opened).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

async fn ends_of_questions_extend_deadline_once(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    let waits = async |now| {
        let waits = bench.interactions().waits_of_run(run.id, now).await;
        waits.unwrap().unwrap()
    };
    let before = run.deadline_at;
    assert_eq!(waits(BEGIN).await.deadline_at, before);
    let id = opened(ask(&bench, &run, exceeded(), BEGIN).await);
    let open = waits(BEGIN + 7_000).await;
    assert!(open.is_waiting && open.deadline_at > before + 7_000);
    let close = CloseBudgetQuestion {
        workspace: bench.workspace.clone(),
        run_id: run.id,
        id: id.clone(),
        at: BEGIN + 7_000,
    };
    for _ in 0..2 {
        bench.write(close.clone()).await.unwrap();
        let closed = waits(BEGIN + 9_000).await;
        assert_eq!(
            (closed.is_waiting, closed.deadline_at),
            (false, before + 7_000)
        );
    }
    let late = give(&bench, &run, &id, Some(15), BEGIN + 8_000).await;
    assert_eq!(late, AnswerDelivery::Refused(Unanswerable::Expired));

    // The second question has the rest of the time, and its expiry refuses from then on.
    let question = ask(&bench, &run, exceeded(), BEGIN + 10_000).await;
    let expires_at = BEGIN + 10_000 + MAX_WAIT_MS - 7_000;
    assert!(matches!(&question, BudgetQuestion::Open { expires_at: at, .. } if *at == expires_at));
    for later in [0, 5_000] {
        let question = ask(&bench, &run, exceeded(), expires_at + later).await;
        assert_eq!(question, BudgetQuestion::Refused);
        let deadline_at = waits(expires_at + later).await.deadline_at;
        assert_eq!(deadline_at, before + MAX_WAIT_MS);
    }
}
