"""Times of a cron expression in a time zone. Days with a change of clocks are cronsim's to know (as Debian's cron)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression of five fields, and its time zone."""

    cron: str
    zone: str = "UTC"

    def next_after(self, moment: datetime) -> datetime:
        """The first time after a moment. `read_schedule` takes no expression that has none."""
        return next(CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone)))).astimezone(UTC)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last time after a moment and not after another one."""
        beyond = (until + timedelta(seconds=1)).astimezone(ZoneInfo(self.zone))
        found = next(CronSim(self.cron, beyond, reverse=True)).astimezone(UTC)
        return found if found > after else None


def read_schedule(cron: str, zone: str = "") -> Schedule:
    """A schedule; "" is UTC. Raises ValueError in words for what cannot be read."""
    zone = zone or "UTC"
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"time zone {zone!r} not found") from error
    if len(cron.split()) != 5:
        raise ValueError(f"cron {cron!r} must have 5 fields: minute, hour, day, month, weekday")
    for reverse in (False, True):
        try:
            next(CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC), reverse=reverse))
        except CronSimError as error:
            raise ValueError(f"cron {cron!r}: {str(error).lower()}") from error
        except StopIteration as error:
            raise ValueError(f"cron {cron!r} matches no time") from error
    return Schedule(cron, zone)
