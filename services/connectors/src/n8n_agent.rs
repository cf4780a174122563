//! Workflows on n8n, called by a webhook or a chat trigger.

mod config;
mod events;
mod request;

use crate::catalogue::Platform;
use crate::machine::{Machine, MachineInput, OutputQueue};
use crate::n8n_agent::config::{Config, Handling};
use crate::n8n_agent::events::N8nReply;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::ConnectorFailure;

pub(crate) const PLATFORM: Platform = Platform {
    name: "n8n-agent",
    prefix: "n8n",
    label: "n8n",
    description: "A workflow on n8n behind a webhook or a chat trigger",
    legacy: &[
        "plugin:langbot/n8n-agent/default",
        "plugin:langbot-team/N8nAgent/default",
    ],
    takes_files: false,
    asks: false,
    form: include_str!("n8n_agent/form.json"),
    start,
};

fn start(
    turn: ConnectorTurn,
    reader: &mut ConfigReader<'_>,
) -> Result<Box<dyn Machine>, ConnectorFailure> {
    let config = Config::read(reader)?;
    turn.refuse_files("n8n")?;
    Ok(Box::new(N8n {
        reply: N8nReply::new(&turn, &config.output_key),
        turn,
        config,
    }))
}

struct N8n {
    config: Config,
    turn: ConnectorTurn,
    reply: N8nReply,
}

impl Machine for N8n {
    fn on(&mut self, input: MachineInput, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        match input {
            MachineInput::Begin => {
                let request = request::call(&self.config, &self.turn, out)?;
                out.call(request);
                Ok(())
            }
            MachineInput::Event(event) if self.config.handling == Handling::Reply => {
                self.reply.event(&event, out)
            }
            MachineInput::Ended => match self.config.handling {
                Handling::Reply => self.reply.complete(out),
                Handling::Ignore => {
                    out.finish("stop", None);
                    Ok(())
                }
            },
            MachineInput::Refused(refusal) => Err(refusal.into()),
            MachineInput::Failed(error) => Err(error.into()),
            MachineInput::Opened(_)
            | MachineInput::Event(_)
            | MachineInput::History(_)
            | MachineInput::Answered(_) => Ok(()),
        }
    }
}
