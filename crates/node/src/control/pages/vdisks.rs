//! `/vdisk_stats`: all vDisks, a line each.

use super::html::{Page, bytes, escape, microseconds, number, share};
use crate::api::{ElsewhereView, VdiskFiguresListView, VdiskFiguresView};
use crate::path_part;

pub fn vdisks(list: &VdiskFiguresListView) -> String {
    let mut page = Page::new("vDisks", "/vdisk_stats");
    for shard in &list.silent_shards {
        page.warning(&format!("shard {shard} did not answer: the vDisks that it serves are missing here"));
    }
    if list.vdisks.is_empty() {
        page.line("this node serves none");
    } else {
        page.line("since the vDisk came here; half and 99 % of the requests took up to so long");
        page.raw(
            "<table><tr><th class=\"t\" rowspan=\"2\">vDisk</th><th rowspan=\"2\">size</th>\
             <th rowspan=\"2\">outstanding</th><th colspan=\"4\">reads</th><th colspan=\"4\">writes</th>\
             <th rowspan=\"2\">random</th><th colspan=\"2\">working set</th><th rowspan=\"2\">errors</th></tr>\
             <tr><th>number</th><th>bytes</th><th>half</th><th>99 %</th>\
             <th>number</th><th>bytes</th><th>half</th><th>99 %</th><th>2 min</th><th>1 h</th></tr>",
        );
        list.vdisks.iter().for_each(|vdisk| row(&mut page, vdisk));
        page.end_table();
    }
    if !list.elsewhere.is_empty() {
        page.heading("Served by other nodes");
        page.begin_table(&["vDisk", " node"]);
        list.elsewhere.iter().for_each(|vdisk| page.row(&[escape(&vdisk.name), place(vdisk)]));
        page.end_table();
    }
    page.end()
}

fn row(page: &mut Page, vdisk: &VdiskFiguresView) {
    let (counts, pattern) = (&vdisk.counts, &vdisk.pattern);
    let random = pattern.reads_random + pattern.writes_random;
    let all = random + pattern.reads_sequential + pattern.writes_sequential;
    let half = |count: u64, us: u64| if count == 0 { "-".to_string() } else { microseconds(us) };
    let (read, write) = (&vdisk.read_us, &vdisk.write_us);
    page.row(&[
        format!("<a href=\"/vdisk_stats/{}\">{}</a>", path_part(&vdisk.name), escape(&vdisk.name)),
        bytes(vdisk.size),
        number(vdisk.outstanding_now.into()),
        number(counts.reads),
        bytes(counts.read_bytes),
        half(read.count, read.p50),
        half(read.count, read.p99),
        number(counts.writes),
        bytes(counts.write_bytes),
        half(write.count, write.p50),
        half(write.count, write.p99),
        share(random, all),
        bytes(vdisk.working_set.minutes.bytes),
        bytes(vdisk.working_set.hour.bytes),
        number(counts.errors),
    ]);
}

/// The node that serves it, as a link.
pub(super) fn place(vdisk: &ElsewhereView) -> String {
    match (vdisk.node, &vdisk.api) {
        (Some(node), Some(api)) => {
            let to = format!("http://{api}/vdisk_stats/{}", path_part(&vdisk.name));
            format!("<a href=\"{}\">node {node}</a>", escape(&to))
        }
        _ => "nobody at this moment".to_string(),
    }
}
