//! Schedules: their settings, their due times, and the wakes that runs request.

mod triggering;
mod wakes;

use std::sync::Arc;

use domain::schedule::check_schedule;
use protocol::admin::Fault;
use protocol::id::{AgentId, ScheduleId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::schedule::ScheduleSpec;
use store::{
    ChangeStamp, RunSchedule, SaveSchedule, SavedSchedule, ScheduleRan, ScheduleRecord, StoreError,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::deps::RunDeps;
use crate::intake::Intake;

pub use wakes::WakeError;

/// Cause of a refused change.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error("the schedule is invalid")]
    Faults(Vec<Fault>),
    #[error("a schedule of this name exists")]
    NameTaken,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The schedules of all workspaces.
pub struct Schedules {
    deps: Arc<RunDeps>,
    intake: Arc<Intake>,
    /// Notified of an occurrence that this process has stored.
    queued: Notify,
}

impl Schedules {
    pub(super) fn new(deps: Arc<RunDeps>, intake: &Arc<Intake>) -> Self {
        Self {
            deps,
            intake: Arc::clone(intake),
            queued: Notify::new(),
        }
    }

    /// Creates a schedule for the API.
    pub async fn create(
        &self,
        workspace: &WorkspaceId,
        spec: ScheduleSpec,
        stamp: ChangeStamp,
    ) -> Result<SavedSchedule, ScheduleError> {
        let agent = self.check(workspace, &spec).await?;
        let by = stamp.by.clone();
        let record = self.record(workspace, spec, agent, "api", by).await?;
        let create = SaveSchedule::Create(Box::new(record));
        self.save(stamp, create).await
    }

    /// Replaces the settings of a schedule of the API.
    pub async fn update(
        &self,
        workspace: &WorkspaceId,
        id: ScheduleId,
        spec: ScheduleSpec,
        if_match: Option<i64>,
        stamp: ChangeStamp,
    ) -> Result<SavedSchedule, ScheduleError> {
        let agent = self.check(workspace, &spec).await?;
        let by = stamp.by.clone();
        let mut record = self.record(workspace, spec, agent, "api", by).await?;
        record.id = id;
        let record = Box::new(record);
        let update = SaveSchedule::Update { record, if_match };
        self.save(stamp, update).await
    }

    /// Deletes a schedule of the API with its occurrences. Their runs stay.
    pub async fn delete(
        &self,
        workspace: &WorkspaceId,
        id: ScheduleId,
        if_match: Option<i64>,
        stamp: ChangeStamp,
    ) -> Result<SavedSchedule, ScheduleError> {
        let delete = SaveSchedule::Delete {
            id,
            workspace: workspace.clone(),
            if_match,
        };
        self.save(stamp, delete).await
    }

    /// Begins a pause. Due times of the pause are neither run nor misfires.
    pub async fn pause(
        &self,
        record: &ScheduleRecord,
        stamp: ChangeStamp,
    ) -> Result<SavedSchedule, ScheduleError> {
        let at = self.now_ms().await?;
        let pause = SaveSchedule::Pause {
            id: record.id,
            workspace: record.workspace.clone(),
            paused_at: Some(at),
            by: stamp.by.clone(),
            at,
        };
        self.save(stamp, pause).await
    }

    /// Ends a pause.
    pub async fn resume(
        &self,
        record: &ScheduleRecord,
        stamp: ChangeStamp,
    ) -> Result<SavedSchedule, ScheduleError> {
        let at = self.now_ms().await?;
        let resume = SaveSchedule::Pause {
            id: record.id,
            workspace: record.workspace.clone(),
            paused_at: None,
            by: stamp.by.clone(),
            at,
        };
        self.save(stamp, resume).await
    }

    /// Queues an occurrence of now.
    pub async fn run_now(&self, record: &ScheduleRecord) -> Result<ScheduleRan, StoreError> {
        let run = RunSchedule {
            id: record.id,
            workspace: record.workspace.clone(),
            at: self.now_ms().await?,
        };
        let ran = self.deps.store.write(run).await?;
        self.queued.notify_one();
        Ok(ran)
    }

    /// Applies the schedules of the configuration; others of an earlier one are disabled.
    pub async fn configure(
        &self,
        workspace: &WorkspaceId,
        specs: Vec<ScheduleSpec>,
    ) -> Result<(), ScheduleError> {
        let agents = self.deps.store.agents();
        // A gateway without schedules writes nothing at its start.
        if specs.is_empty() && !agents.has_configured_schedules(workspace).await? {
            return Ok(());
        }
        let disable = SaveSchedule::DisableUnnamed {
            workspace: workspace.clone(),
            names: specs.iter().map(|spec| spec.name.clone()).collect(),
            at: self.deps.clock.now_ms(),
        };
        let stamp = || self.deps.stamp(PrincipalKind::Config);
        self.save(stamp(), disable).await?;
        for spec in specs {
            let agent = self.find_agent(workspace, &spec).await?;
            if let (Some(named), None) = (&spec.agent, agent) {
                tracing::warn!(
                    schedule.name = spec.name,
                    "schedule {} names agent {named}, which does not exist; its occurrences fail",
                    spec.name
                );
            }
            let by = PrincipalKind::Config.into();
            let record = self.record(workspace, spec, agent, "config", by).await?;
            // Another replica may start at the same time and be first: then the rows are equal.
            let configure = SaveSchedule::Configure(Box::new(record));
            match self.save(stamp(), configure.clone()).await {
                Err(ScheduleError::NameTaken) => self.save(stamp(), configure).await?,
                saved => saved?,
            };
        }
        Ok(())
    }

    /// Checks a specification, and returns its agent.
    async fn check(
        &self,
        workspace: &WorkspaceId,
        spec: &ScheduleSpec,
    ) -> Result<Option<AgentId>, ScheduleError> {
        let faults = check_schedule(spec);
        if !faults.is_empty() {
            return Err(ScheduleError::Faults(faults));
        }
        let agent = self.find_agent(workspace, spec).await?;
        if spec.agent.is_some() && agent.is_none() {
            let fault = Fault::new("/agent", "names no agent of this workspace");
            return Err(ScheduleError::Faults(vec![fault]));
        }
        Ok(agent)
    }

    async fn find_agent(
        &self,
        workspace: &WorkspaceId,
        spec: &ScheduleSpec,
    ) -> Result<Option<AgentId>, StoreError> {
        match &spec.agent {
            Some(named) => {
                let agents = self.deps.store.agents();
                agents.find_agent_id(workspace, named).await
            }
            None => Ok(None),
        }
    }

    async fn record(
        &self,
        workspace: &WorkspaceId,
        spec: ScheduleSpec,
        agent: Option<AgentId>,
        origin: &str,
        by: Principal,
    ) -> Result<ScheduleRecord, StoreError> {
        let now = self.now_ms().await?;
        let mut record = ScheduleRecord {
            id: ScheduleId(Uuid::now_v7()),
            workspace: workspace.clone(),
            origin: origin.to_owned(),
            spec,
            agent,
            paused_at: None,
            next_due_at: None,
            version: 1,
            created_at: now,
            updated_at: now,
            updated_by: by,
        };
        record.next_due_at = record.due_after(now);
        Ok(record)
    }

    async fn save(
        &self,
        stamp: ChangeStamp,
        save: SaveSchedule,
    ) -> Result<SavedSchedule, ScheduleError> {
        let saved = self.deps.store.change(stamp, save).await;
        saved.map_err(|error| match error {
            // The unique index decides: two schedules of one name may be created at the same time.
            StoreError::Taken => ScheduleError::NameTaken,
            error => error.into(),
        })
    }

    /// Time by the clock that decides about due times, which all replicas share.
    async fn now_ms(&self) -> Result<i64, StoreError> {
        let shared = self.deps.store.leases().read_clock().await?;
        Ok(shared.unwrap_or_else(|| self.deps.clock.now_ms()))
    }
}
