//! Workflows on n8n behind a webhook or a chat trigger.

mod config;
mod events;
mod request;

use crate::catalogue::Platform;
use crate::machine::{Input, Machine, Outbox};
use crate::n8n_agent::config::{Config, Handling};
use crate::n8n_agent::events::Reply;
use crate::turn::Turn;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::Failure;

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

fn start(turn: Turn, reader: &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, Failure> {
    let config = Config::read(reader)?;
    turn.refuse_files("n8n")?;
    Ok(Box::new(N8n {
        reply: Reply::new(&turn, &config.output_key),
        turn,
        config,
    }))
}

struct N8n {
    config: Config,
    turn: Turn,
    reply: Reply,
}

impl Machine for N8n {
    fn on(&mut self, input: Input, out: &mut Outbox) -> Result<(), Failure> {
        match input {
            Input::Begin => {
                let request = request::call(&self.config, &self.turn, out)?;
                out.call(request);
                Ok(())
            }
            Input::Event(event) if self.config.handling == Handling::Reply => {
                self.reply.event(&event, out)
            }
            Input::Ended => match self.config.handling {
                Handling::Reply => self.reply.complete(out),
                Handling::Ignore => {
                    out.finish("stop", None);
                    Ok(())
                }
            },
            Input::Refused(refusal) => Err(refusal.into()),
            Input::Failed(error) => Err(error.into()),
            Input::Opened(_) | Input::Event(_) | Input::History(_) | Input::Answered(_) => Ok(()),
        }
    }
}
