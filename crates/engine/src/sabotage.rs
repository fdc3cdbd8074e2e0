//! Bugs planted on purpose, so that the simulator can prove that its judges see them.
//! Without the feature `sabotage` no bug is ever planted, and the compiler removes every trace of them.

/// The bugs that can be planted, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Log frames are written without waiting for the drive's cache.
    AckBeforeFlush,
    /// A flush counts writes of egroups that had not ended when it began.
    FlushCoversInFlight,
    /// A keeper accepts records of owners that were fenced.
    StaleEpochAccepted,
    /// Units are given out without a look at their checksums.
    ChecksumNotChecked,
    /// Compressed frames are given out whatever their checksums say, and whether they unpack or not.
    FrameNotChecked,
    /// A unit is looked for in the frame behind its own.
    OtherFrame,
    /// A map record is written before its egroup is durable.
    MapBeforeData,
    /// Records are trimmed that are still needed.
    TrimTooEarly,
    /// A fence is answered and not kept, so that owners of both epochs may write.
    FenceForgotten,
    /// A member that joined with the present segment does not count for what is durable.
    NewMemberNotCounted,
    /// Copies on former members are deleted before all members have theirs.
    FormerCopiesDropped,
    /// That a copy is bad is known only while it waits to be made anew.
    BadCopyForgotten,
    /// A drive that lacked a copy once is taken to lack it, although copies have moved since.
    LackOfBeforeCounts,
    /// Groups are told to be whole before anybody has looked.
    WholeTooEarly,
    /// Segments that nobody needs stay in the config record, on drives that shall go.
    OldSegmentsKept,
    /// A node gives replies although it must not rely on its lease any more (in the simulator's control plane).
    DeadlineIgnored,
    /// What former owners wrote or copied after it had died stays: only own orphans are looked for.
    OldOrphansKept,
    /// A new owner recovers from the segments as they were before the last change.
    SegmentsOfBefore,
    /// Units are kept in memory, and read ahead, under a name that leaves out which egroup they are of.
    CacheWithoutEgroup,
    /// Of a frame that is kept in memory the first units are given, whichever were wanted.
    FrameFromItsBeginning,
    /// What a drive holds of families that are no more stays there.
    StraysStay,
    /// Dead egroups are forgotten instead of deleted.
    SpaceLeak,
    /// What is written behind a snapshot's mark lands in the generation before it.
    FrozenLayerWritten,
    /// The newest generation is drained first.
    GenerationsOutOfOrder,
    /// A unit that is replaced counts as dead although a snapshot sees it.
    SnapshotUnitsDeleted,
    /// Units that only a dropped snapshot saw count as live for ever.
    PastLeak,
    /// A pool that was full once is full until something is drained, whether there is anything to drain or not.
    FullForEver,
    /// A pool that others' data fills counts as full at once for who has nothing of its own that comes back.
    OwnReclaimingOnly,
    /// A write is refused by what its owner knew of the pool when something happened to it last.
    PoolOfLastTime,
    /// A ring that had no room is sent the same again as soon as what came behind was refused as well.
    FullAgainAtOnce,
    /// A member that has not said yet how much room it has is asked again, by one more question each time.
    SilentAskedAgain,
    /// A ring without room on a drive without space is full at once, whatever comes back.
    FullRingAtOnce,
    /// An owner that opens waits for room on a member of its log for ever.
    FullMemberKept,
    /// An opening does without a member whose ring has no room for a fence at this moment.
    FullMemberLeftOut,
    /// A mark that the checkpoint knows is waited for when an opening appends it again.
    KnownMarkAwaited,
    /// What a full ring waits for comes behind data that it has no room for, and that waits for the ring.
    LateDataRefused,
    /// Data and pages leave the log also where they get fewer copies then, because members of all groups are away.
    LogLeftForLess,
    /// Checkpoints begin there as everywhere.
    PagesForLess,
    /// Large writes go around the log there as well.
    BypassForLess,
    /// What members lack of the log's end is not given to them before a new part begins.
    EndsNotGiven,
    /// What members lack of a log's end is given to them only if their rings have room for what has a copy.
    EndsWaitForRoom,
    /// Who answers while the log is read is heard about checkpoints only.
    LateEndUnheard,
    /// Where the log ends for those who are sure, it ends although somebody may come who knows more.
    LateGiverUnheard,
    /// There it ends also before a write that somebody has, damaged.
    LostCutOff,
    /// Whoever told what it has, and was away since, has it still.
    OldWordBelieved,
    /// Every copy of what is lost is asked for it, and those that are away are waited for.
    LostAskedAgain,
    /// A write that is damaged on all members of a log was never there.
    LostWriteForgotten,
    /// It is given up although somebody only could not read it.
    UnreadTakenForLost,
    /// So is what a drive does not give that gives nothing at all.
    SilentDriveBelieved,
    /// What a drive does not give is never given up.
    WithheldForEver,
    /// What such a write leaves in an egroup is sound.
    LostUnitsSound,
    /// A copy of which something is bad everywhere is not made.
    PartialCopiesGivenUp,
    /// A run of units of which each copy has something bad is not had from anywhere.
    RunsGivenUpWhole,
    /// Nor is a page of the map.
    PagesGivenUpWhole,
    /// What such a copy lacks is sound.
    LackingUnitsSound,
    /// What a drive did not give once it will never give.
    FirstFaultBelieved,
    /// Neither will one that gives nothing at all.
    SilentSourceBelieved,
    /// Only what drives have told by chance counts for whether the pool has room.
    SpaceNotAsked,
    /// What is free a while after its deletion was answered is not waited for.
    LateSpaceNotAsked,
    /// A log without a record is one of a vDisk without data, whatever drives hold of it.
    EmptyLogBelieved,
    /// As long as something is deleted, it is waited for.
    DeletionsWaitedFor,
    /// A drive is told of a run as free that has been given out since.
    UsedIsUntold,
    /// A run is given out while the drive is told that it is free.
    ToldIsGivenOut,
    /// A trim waits behind writes that wait for the space it frees.
    TrimsWaitForSpace,
    /// A write goes around a log that never had a record.
    FirstWriteBypasses,
    /// Large writes around the log cover nothing of what is dirty there.
    DirtyOutlivesBypass,
    /// What is drained is named also behind a write around the log that took its place.
    DrainedAfterBypass,
    /// Large writes go around the log also where something of a snapshot is still in it.
    FrozenBypassed,
    /// What lost a copy in the log gets it back only when a full pool has room again.
    LostCopiesWait,
    /// While only one drive of a node is up, the others count as away for as long as their neighbours in other nodes.
    OpeningDrivesForgotten,
    /// What a log was written on too few drives stays there as it is, though there are others by now.
    ThinSegmentsStay,
    /// A part of a log that nobody can give a copy of keeps those behind it from getting theirs.
    LateCopiesStuck,
    /// Copies that come late take the room that lets a ring go on.
    LateCopiesTakeAll,
    /// A drive is named as a member of a part of the log before it has any of it.
    LateMemberNamedEarly,
    /// Records that come late count as appended when they came: what is newer and of an older epoch is void.
    LateRecordsAsNew,
    /// A log stays on a slow drive although there are others, as far apart.
    SlowMemberKept,
    /// A log gives up a fault domain to leave a slow drive.
    SlowCostsDomain,
    /// That a vDisk has as many copies as it should is not taken back when a drive goes away.
    FactorToldForEver,
    /// Writes of parts of blocks, which read first, are let in as if each were alone.
    PartsNotCounted,
    /// A member of a log that does not answer who takes it over is not asked any more, whatever becomes of the others.
    AbsentForgotten,
    /// What is moved goes to whoever is up of a group, though it had more copies where it was.
    ThinMoves,
    /// What is drained goes to groups with few members up when those with more have no room.
    ThinDrains,
    /// A frame of a log that carries some fences lets go of frames with others.
    FencesLeftBehind,
    /// The last block of a log goes to a frame that does not say what is free.
    LastBlockTaken,
    /// A log lets in whatever comes while something dead is not free yet.
    MoreThanFits,
    /// The same, and what has no place then waits for one for ever.
    QueueKept,
    /// What the own shard asks of a drive that is being opened is not kept when many wait.
    OwnAskForgotten,
    /// The entries kept for pages are as many for many families as for few.
    ReserveOfFew,
    /// What is due when a vDisk is served is due while it is opened, and a drain that something holds up is due all the time.
    WokenForNothing,
    /// A compaction that has fetched many pages throws away what it has found.
    CompactedInVain,
    /// What pins a ring is never carried on.
    PinsStay,
    /// While the frame that carries records on is on its way, they are not held.
    CarriedUnseen,
    /// Where a record that was carried on lies counts as where the log of its family ends.
    CarriedIsTheEnd,
    /// What is carried on is not looked at before.
    CarriedUnchecked,
    /// A frame that carries records on needs a block more, for the one that says what is free behind it.
    CopiesNeedMore,
    /// Fences of owners that are opened again and again take what carrying on needs.
    FencesTakeAll,
    /// What is left free for carrying on may be in two pieces, at the end of the ring and at its beginning.
    SlackInPieces,
    /// Records share frames that cannot be carried on in what is left free for that.
    FramesTooLarge,
    /// What is carried on as lost counts as gone from where it lies, although it may be read there meanwhile.
    FoundLeftBehind,
    /// Behind a last frame nothing was written, whether it can be read there or not.
    UnreadEndBelieved,
    /// A last frame that is not whole was never finished, whatever may have become of it.
    TornEndBelieved,
    /// Where nobody knows whose records a frame had, that is known only as long as its place is not another one's.
    AnybodyForgotten,
    /// Who was doubted once is not doubted for another end.
    OldDoubtHides,
    /// What is behind such an end on one drive was never acknowledged, also if another member has it.
    TornEndCounts,
    /// A copy is deleted by what was asked before it was put there, and that is asked for until it is answered.
    LateDeletion,
    /// A deletion is asked for until it is answered, whatever was asked since; drives know better.
    DeletionsRepeated,
    /// A new owner stays with the checkpoint that it found first, also if that cannot be read or another member knows a newer one.
    FirstBaseKept,
    /// Only the first part of a drive's list is looked at.
    FirstPartOnly,
    /// What a drive lacks of what was named while it was listed is forgotten if many copies are owed.
    LackForgotten,
    /// A vDisk keeps in memory what it may, whatever the others of its shard keep.
    OthersNotCounted,
    /// A leaf and its past change at different instants.
    PastApart,
    /// Of a leaf with a long past only some pages change, and the others are forgotten.
    PastRestForgotten,
    /// Egroups are emptied although a running checkpoint has not counted them yet.
    VictimsNotCounted,
    /// Marks of snapshots are passed over in a replay.
    MarkForgotten,
    /// A clone reads what its origin is now.
    CloneOfPresent,
    /// What is trimmed in a clone is its origin's again.
    CloneTrimForgotten,
    /// A checkpoint does not tell of the wide ranges of leaves that were trimmed in a clone.
    WideTrimForgotten,
    /// A rollback does not wait for what is in the log.
    RollbackUnsettled,
    /// An owner to whom the record says that a rollback is not done serves clients at once.
    RollbackNotRepeated,
    /// A rollback that has begun is refused for a snapshot that waits for it.
    WaitingSnapshotInTheWay,
    /// A rollback leaves what is newer than the snapshot where the snapshot has nothing.
    RollbackKeepsNewer,
    /// Owners take requests while the snapshots of a group are taken (in the simulator's control plane).
    HoldsForgotten,
    /// Bytes cost nothing at a vDisk's door.
    LargeRequestsFree,
    /// Nobody looks at a vDisk's door when those that wait there could be let in.
    DoorStaysShut,
    /// Of those who wait for a drive, nobody has a share for sure.
    TurnsByGreed,
    /// Turns to read never end.
    TurnsKept,
    /// Pages of the map have one copy whatever the factor is, and it counts as reached without them.
    FactorWithoutPages,
    /// A new factor counts as reached although the log has as many members as before.
    FactorWithoutLog,
    /// A new factor counts as reached before anybody has looked whether the copies are there.
    FactorUnseen,
    /// Data stays where its vDisk was, however often it is read.
    NothingFollows,
    /// That a group has a drive of the owner counts for nothing: data lies anywhere, and follows its vDisk in vain.
    FirstCopyAnywhere,
    /// With an egroup all blocks of its run are freed, whoever refers to them.
    SharedFreed,
    /// The references of an egroup outlive it.
    ReferencesKept,
    /// What was freed is still found by its hash.
    SharedAfterFreed,
    /// What is being written is found by its hash before it is durable, and its page may be durable although it never was. (Seen by the
    /// keeper's own stories: whoever shares it is flushed later, and that mostly covers it, so a cut at the right moment is rare.)
    SharedBeforeDurable,
    /// What trailers tell after an opening is referred to although nobody has looked at it. (Seen by the keeper's own stories: where
    /// drives rot in the simulator, others have copies, and what is met is repaired from those.)
    UnprovenShared,
}

#[cfg(feature = "sabotage")]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// What comes of the story, run on this thread with the bug planted.
#[cfg(feature = "sabotage")]
pub fn with<T>(bug: Bug, story: impl FnOnce() -> T) -> T {
    CURRENT.with(|current| current.set(Some(bug)));
    let outcome = story();
    CURRENT.with(|current| current.set(None));
    outcome
}

/// Whether `bug` is planted on this thread.
#[cfg(feature = "sabotage")]
pub fn planted(bug: Bug) -> bool {
    CURRENT.with(|current| current.get()) == Some(bug)
}

/// Whether `bug` is planted: never.
#[cfg(not(feature = "sabotage"))]
pub const fn planted(_bug: Bug) -> bool {
    false
}
