//! Whether an owner repeats what could undo what it has asked for since: once a drive was asked for its list, or given the copy of
//! an egroup again, no deletion that was asked for before may be asked for once more.

use std::collections::BTreeMap;
use weft_engine::message::{Message, Question};
use weft_engine::{DriveId, EgroupId, FamilyId};

/// Of one owner: the number of the last question that makes it count on what lies there.
#[derive(Default)]
struct Counted {
    lists: BTreeMap<(FamilyId, DriveId), u64>,
    copies: BTreeMap<(FamilyId, DriveId, EgroupId), u64>,
}

/// By shard.
#[derive(Default)]
pub struct Deletions(BTreeMap<usize, Counted>);

impl Deletions {
    /// The shard begins anew, with other numbers.
    pub fn started(&mut self, shard: usize) {
        self.0.remove(&shard);
    }

    /// The shard says something to another.
    pub fn said(&mut self, shard: usize, message: &Message) -> Result<(), String> {
        let &Message::Ask { call, drive, family, ref question, .. } = message else { return Ok(()) };
        match question {
            Question::ListEgroups { after: EgroupId(0) } => {
                let Counted { lists, copies } = self.0.entry(shard).or_default();
                let list = lists.entry((family, drive)).or_default();
                // It may be repeated behind a later one.
                *list = call.max(*list);
                // Those of before are covered by it.
                copies.retain(|&(of, on, _), copy| of != family || on != drive || *copy > *list);
            }
            Question::WriteEgroup { egroup, replace: true, .. } => {
                let copies = &mut self.0.entry(shard).or_default().copies;
                let copy = copies.entry((family, drive, *egroup)).or_default();
                *copy = call.max(*copy);
            }
            Question::DeleteEgroups { egroups } => {
                let Some(Counted { lists, copies }) = self.0.get(&shard) else { return Ok(()) };
                let is_before = |counted: Option<&u64>| counted.is_some_and(|&counted| call < counted);
                let told = |since: String| {
                    Err(format!("family {family} repeats a deletion on drive {drive}, and has since {since}"))
                };
                if is_before(lists.get(&(family, drive))) {
                    return told("asked for the list".to_string());
                }
                if let Some(egroup) =
                    egroups.iter().find(|egroup| is_before(copies.get(&(family, drive, **egroup))))
                {
                    return told(format!("put egroup {egroup} there again"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
