"""What a user of `crrd recreate` can do about a wait or a skipped pod: the flags."""

from crrd.core.rollout.skips import RESTART_MORE
from crrd.core.rollout.waits import Remedies, WaitReason

FLAGS: Remedies = {
    WaitReason.ROLLOUT: "to continue anyway: --force",
    WaitReason.STEP_PAUSE: "to begin it now: resume {run} -n {namespace} --yes",
    WaitReason.UNREADY_IN_ORDER: "restart pod/{pod} first, or use --max-unavailable {enough}",
    WaitReason.NODE_LIMIT: "to change the limit: --max-per-node",
    WaitReason.ZONE_LIMIT: "to change the limit: --max-per-zone",
    **dict.fromkeys(RESTART_MORE, "to allow this, use --allow-pod-restart"),
}
