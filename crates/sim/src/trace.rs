//! What goes into and comes out of shards, in short lines, for whoever looks into a failing seed.

use crate::world::World;
use weft_engine::{Input, Outputs};

const WIDTH: usize = 260;

fn line(now: u64, shard: usize, sign: &str, what: &dyn std::fmt::Debug) {
    let mut text = format!("{what:?}");
    if text.len() > WIDTH {
        let mut cut = WIDTH;
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        text.truncate(cut);
        text.push_str(" ...");
    }
    println!("{now:>10} s{shard} {sign} {text}");
}

impl World {
    pub fn trace_input(&self, shard: usize, input: &Input) {
        line(self.now, shard, "<", input);
    }

    pub fn trace_outputs(&self, shard: usize, outputs: &Outputs) {
        for operation in &outputs.operations {
            line(self.now, shard, ">", operation);
        }
        for message in &outputs.messages {
            line(self.now, shard, ">", message);
        }
        for reply in &outputs.replies {
            line(self.now, shard, ">", reply);
        }
        for notice in &outputs.notices {
            line(self.now, shard, ">", notice);
        }
    }
}
