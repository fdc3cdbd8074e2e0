//! `/cache_stats`: what is found in memory.

use super::html::{Page, bar, bytes, duration, number, share};
use crate::api::CacheView;

const MEANINGS: [&str; 4] = [
    "read cache: blocks of vDisks. 80 % and more is good where the same is read again and again; more memory helps \
     (weft cache resize) when it is full and the rate is low",
    "block map: pages of the maps of vDisks. What is not found costs one read more; nearly 100 % is wanted (weft vdisk \
     warm brings them in)",
    "egroup map: where egroups lie on drives, and their checksums. In memory whole: what is not found is not there any more",
    "read ahead: blocks read ahead of sequential streams; found when somebody read them, not found when nobody has yet",
];

pub fn cache(view: &CacheView) -> String {
    let mut page = Page::new("What is found in memory", "/cache_stats");
    let minute = &view.minute;
    page.line(&format!(
        "the read cache has {} of {} in use; the last minute is {} long",
        bytes(view.used_bytes),
        bytes(view.bytes),
        duration(minute.us)
    ));
    page.raw(
        "<table><tr><th class=\"t\" rowspan=\"2\"></th><th colspan=\"4\">last minute</th>\
         <th colspan=\"4\">since the start</th></tr>\
         <tr><th>found</th><th>not found</th><th>rate</th><th></th>\
         <th>found</th><th>not found</th><th>rate</th><th></th></tr>",
    );
    for (name, (hits, misses), (all_hits, all_misses)) in [
        ("read cache", (minute.hits, minute.misses), (view.hits, view.misses)),
        ("block map", (minute.page_hits, minute.page_misses), (view.page_hits, view.page_misses)),
        (
            "egroup map",
            (minute.egroup_map_hits, minute.egroup_map_misses),
            (view.egroup_map_hits, view.egroup_map_misses),
        ),
        (
            "read ahead",
            (minute.ahead_used, minute.ahead_issued.saturating_sub(minute.ahead_used)),
            (view.ahead_used, view.ahead_issued.saturating_sub(view.ahead_used)),
        ),
    ] {
        page.raw(&format!(
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>",
            number(hits),
            number(misses),
            share(hits, hits + misses),
            bar(hits, hits + misses, false),
            number(all_hits),
            number(all_misses),
            share(all_hits, all_hits + all_misses),
            bar(all_hits, all_hits + all_misses, false),
        ));
    }
    page.end_table();
    let shared = &view.shared;
    page.line(&format!(
        "shared: of {} written with the wish to share {} lay there already; drives save {}; {} of {} hashes are known, in {}",
        bytes(shared.bytes_hashed),
        bytes(shared.bytes_found),
        bytes(shared.saved_bytes),
        number(shared.entries),
        number(shared.entries_max),
        bytes(shared.memory_bytes),
    ));
    for what in MEANINGS {
        page.line(what);
    }
    page.end()
}
