//! Budget sums compared with reservations, settlements and releases, on both databases.
use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{StoreFixture, TestRng, on_both};
use domain::budget::{Amount, Budget, BudgetReached, BudgetWindow};
use domain::run::Run;
use domain::usage::TokenParts;
use protocol::budget::BudgetScope;
use protocol::id::WorkspaceId;
use store::{BudgetLine, ReserveBudget, SettleUsage, UsedCall};
use uuid::Uuid;

on_both!(
    sums_equal_settled_plus_reserved,
    partly_released_call_counts_once,
    deletes_sums_of_past_windows_and_pruned_runs,
    workspace_lists_only_its_own_subjects,
);

const BUDGETS: [&str; 2] = ["calls", "tokens"];
const HOUR: Duration = Duration::from_hours(1);

fn line(bench: &StoreFixture, name: &str, calls: Option<u64>, tokens: Option<u64>) -> BudgetLine {
    BudgetLine {
        budget: Budget {
            name: name.to_owned(),
            scope: BudgetScope::Workspace,
            only: None,
            window: BudgetWindow::Lifetime,
            calls,
            tokens,
            cost_micros: None,
            wall_ms: None,
            reached: BudgetReached::Refuse,
        },
        subject: format!("{0}/{0}", bench.workspace),
        window_start: 0,
        resets_at: None,
    }
}

fn of_tokens(tokens: u64) -> Amount {
    Amount {
        calls: 1,
        tokens,
        ..Amount::default()
    }
}

/// A run with its budgets.
struct BudgetCalls {
    bench: StoreFixture,
    run: Run,
    /// One limits calls, one tokens.
    lines: Vec<BudgetLine>,
}

impl BudgetCalls {
    async fn new(bench: StoreFixture, calls: u64, tokens: u64) -> Self {
        let run = bench.running("e-1").await;
        let lines = vec![
            line(&bench, BUDGETS[0], Some(calls), None),
            line(&bench, BUDGETS[1], None, Some(tokens)),
        ];
        Self { bench, run, lines }
    }

    /// True when the reservation succeeds.
    async fn reserve(&self, call_id: Uuid, tokens: u64) -> bool {
        let reserve = ReserveBudget {
            call_id,
            run_id: self.run.id,
            lines: self.lines.clone(),
            amount: of_tokens(tokens),
            before: Amount::default(),
            lease: HOUR,
        };
        self.bench.write(reserve).await.unwrap().is_ok()
    }

    async fn settle(&self, id: Uuid, reserved: u64, used: u64) {
        let call = UsedCall {
            id,
            workspace: self.bench.workspace.clone(),
            run_id: self.run.id,
            agent_id: self.run.agent_id,
            gateway: "g".to_owned(),
            kind: "model",
            resource: "m".to_owned(),
            outcome: "ok",
            tokens: TokenParts {
                cache_read: used / 2,
                output: used - used / 2,
                ..TokenParts::default()
            },
            is_estimate: false,
            cost_micros: 0,
            wall_ms: 0,
            at: 1,
        };
        let settle = SettleUsage {
            call,
            lines: self.lines.clone(),
            reserved: of_tokens(reserved),
        };
        self.bench.write(settle).await.unwrap();
    }

    /// Expires the leases of reservations.
    async fn lapse(&self, calls: &str) {
        let lapse = format!("UPDATE budget_reservations SET lease_expires_at = 1 WHERE {calls}");
        self.bench.tamper(&lapse).await;
    }

    /// Sums of calls and tokens of each budget.
    async fn used(&self) -> Vec<(u64, u64)> {
        let (bench, mut all) = (&self.bench, Vec::new());
        for budget in BUDGETS {
            let used = bench.usage().used_of(&bench.workspace, budget, 0).await;
            let used = used
                .unwrap()
                .pop()
                .map_or(Amount::default(), |one| one.used);
            all.push((used.calls, used.tokens));
        }
        all
    }
}

async fn sums_equal_settled_plus_reserved(bench: StoreFixture) {
    let (max_calls, max_tokens) = (40, 1_000);
    let calls = BudgetCalls::new(bench, max_calls, max_tokens).await;
    let mut dice = TestRng(20_261_124);
    // Open calls: reserved tokens, and true while the reservation holds.
    let mut open: BTreeMap<Uuid, (u64, bool)> = BTreeMap::new();
    let (mut settled_calls, mut settled_tokens) = (0, 0);
    let mut refused = 0;
    for step in 0..120 {
        let some = usize::try_from(dice.below(8)).unwrap() % open.len().max(1);
        let some = open.keys().nth(some).copied();
        match (dice.below(5), some) {
            (0, Some(id)) => {
                let (reserved, _) = open.remove(&id).unwrap();
                let used = dice.below(reserved + 20);
                calls.settle(id, reserved, used).await;
                (settled_calls, settled_tokens) = (settled_calls + 1, settled_tokens + used);
            }
            (1, Some(id)) => {
                calls.lapse(&format!("call_id = '{id}'")).await;
                // A renewal in time keeps the reservation.
                let is_held = dice.below(2) == 0 && open[&id].1;
                if is_held {
                    let held = calls.bench.usage().extend_reservations(vec![id], HOUR);
                    held.await.unwrap();
                }
                calls.bench.usage().release_reservations().await.unwrap();
                open.get_mut(&id).unwrap().1 = is_held;
            }
            _ => {
                let (id, tokens) = (Uuid::now_v7(), 1 + dice.below(60));
                let reserved = open.values().filter(|(_, is_held)| *is_held);
                let (count, sum) = reserved.fold((0, 0), |(count, sum), (tokens, _)| {
                    (count + 1, sum + tokens)
                });
                let is_within_budget = settled_calls + count < max_calls
                    && settled_tokens + sum + tokens <= max_tokens;
                assert_eq!(
                    calls.reserve(id, tokens).await,
                    is_within_budget,
                    "step {step}"
                );
                if is_within_budget {
                    open.insert(id, (tokens, true));
                } else {
                    refused += 1;
                }
            }
        }
        let reserved: Vec<_> = open.values().filter(|(_, is_held)| *is_held).collect();
        let sum: u64 = reserved.iter().map(|(tokens, _)| tokens).sum();
        let wanted = (settled_calls + reserved.len() as u64, settled_tokens + sum);
        assert_eq!(calls.used().await, [wanted, wanted], "step {step}");
    }
    assert!(
        refused > 5 && settled_calls > 5,
        "{refused} {settled_calls}"
    );
}

async fn partly_released_call_counts_once(bench: StoreFixture) {
    let calls = BudgetCalls::new(bench, 1_000, 10_000).await;
    // Two rows each; one transaction releases 200.
    let ids: Vec<_> = (0..101).map(|_| Uuid::now_v7()).collect();
    for id in &ids {
        assert!(calls.reserve(*id, 10).await);
    }
    calls.lapse("budget = 'calls' OR budget = 'tokens'").await;
    assert_eq!(
        calls.bench.usage().release_reservations().await.unwrap(),
        200
    );
    let left: u64 = calls.used().await.iter().map(|(calls, _)| calls).sum();
    assert_eq!(left, 2);
    for id in &ids {
        calls.settle(*id, 10, 7).await;
    }
    assert_eq!(calls.bench.usage().release_reservations().await.unwrap(), 0);
    assert_eq!(calls.used().await, [(101, 707), (101, 707)]);
}

async fn deletes_sums_of_past_windows_and_pruned_runs(bench: StoreFixture) {
    let run = bench.running("e-1").await;
    bench.end(&run, 0).await;
    let of_run = format!("{}/{}", bench.workspace, run.id);
    let workspace_subject = format!("{0}/{0}", bench.workspace);
    let now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000";
    let now = match bench.database {
        Some(_) => "CAST(EXTRACT(EPOCH FROM now()) * 1000 AS BIGINT)",
        None => now,
    };
    bench
        .tamper(&format!(
            "INSERT INTO budget_usage VALUES ('of-run', '{of_run}', 0, 1, 1, 1, 1), \
             ('total', '{workspace_subject}', 0, 1, 1, 1, 1), ('hour', '{workspace_subject}', 3600000, 1, 1, 1, 1), \
             ('month', '{workspace_subject}', {now} - 2678400000, 1, 1, 1, 1)"
        ))
        .await;
    let store = &bench.store;
    assert_eq!(store.retention().sweep_budgets().await.unwrap(), 1);
    assert_eq!(store.retention().sweep_budgets().await.unwrap(), 0);
    let pruned = store.retention().prune_runs(Duration::ZERO).await.unwrap();
    assert_eq!(pruned, 1);
    for (budget, left) in [("of-run", 0), ("total", 1)] {
        let used = store
            .usage()
            .used_of(&bench.workspace, budget, 0)
            .await
            .unwrap();
        assert_eq!(used.len(), left, "{budget}");
    }
}

async fn workspace_lists_only_its_own_subjects(bench: StoreFixture) {
    let own = bench.workspace.to_string();
    let others = [
        format!("{own}x"),
        format!("x{own}"),
        own.to_uppercase(),
        "%".to_owned(),
        "_".repeat(own.len()),
    ];
    for workspace in others.iter().chain([&own]) {
        let row = format!("INSERT INTO budget_usage VALUES ('b', '{workspace}/s', 0, 1, 1, 1, 1)");
        bench.tamper(&row).await;
    }
    for (workspace, seen) in [(&own, 1), (&others[3], 1), (&others[4], 1)] {
        let workspace = WorkspaceId(workspace.clone());
        let used = bench.usage().used_of(&workspace, "b", 0).await.unwrap();
        assert_eq!(used.len(), seen, "{workspace}");
    }
}
