"""The search: an Optuna study whose trials are cells that are kept, so that it can be stopped and resumed.

Trial k draws from a sampler seeded with (seed, k), and sees only finished trials. So a study that was
interrupted ends like one that was not, and the number of processes decides nothing: cells of a trial that
ran beyond the point of pruning do not count.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, NopPruner, WilcoxonPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from tqdm import tqdm

from compare.pool import Interrupted
from compare.source import Source
from compare.store import find_out
from compare.tuning.loss import Reference, loss_of
from compare.tuning.plan import TuningPlan
from compare.tuning.space import Value, rounded
from topas.errors import InputError
from topas.params import SearchParams, values_of, with_values

ATTRIBUTE = "topas-tune/1"
"""Attribute of a study under which digests of all that it depends on are kept."""

REASON = "reason"
"""Attribute of a trial that failed; one that was only interrupted has none, and is done again."""

ENOUGH = 10
"""Complete trials from which importances are told."""
BEST_SHARE = 0.25
"""What is important for reaching this share of the complete trials: PED-ANOVA's target quantile."""


class State(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished trial: its values, how many cells counted, the mean of their losses.

    ``reason`` says in one line why it failed.
    """

    index: int
    state: State
    params: SearchParams
    cells: int
    loss: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a study came to; ``importance`` sums to 1 and is None after too few complete trials."""

    trials: tuple[Trial, ...]
    importance: Mapping[str, float] | None
    resumed: int

    def of(self, state: State) -> tuple[Trial, ...]:
        """Return the trials that ended in one way."""
        return tuple(trial for trial in self.trials if trial.state == state)

    @property
    def best(self) -> Trial | None:
        """The complete trial of the lowest loss, the first of equal ones; None if there is none."""
        return min(
            self.of(State.COMPLETE), key=lambda trial: 0.0 if trial.loss is None else trial.loss, default=None
        )


def search(  # noqa: PLR0913  what, against what, where and how much
    plan: TuningPlan,
    references: Mapping[Source, Reference],
    folder: Path,
    storage: str,
    name: str,
    *,
    trials: int,
    jobs: int = 1,
    progress: bool | None = None,
) -> Found:
    """Run the study until it has so many trials, and return all of them.

    Parameters
    ----------
    references : the best baselines of each training trace.
    folder : where the results of cells are kept.
    storage, name : of the study; the storage is an SQLAlchemy URL.
    trials : all in all, those of earlier runs included.
    jobs : processes at a time, for the cells of one trial.
    progress : show a bar on standard error; None: only on a terminal.

    Raises
    ------
    InputError
        if the storage cannot be used, or the study in it was made of anything else.
    Interrupted
        on Ctrl-C; finished trials, and finished cells of the one under way, stay.
    """
    with _opened(plan, storage, name) as study:
        resumed = len(_finished(study))
        disable = None if progress is None else not progress
        with tqdm(total=trials, initial=min(resumed, trials), unit="trial", disable=disable) as bar:
            for index in range(resumed, trials):
                study.sampler = TPESampler(seed=_seed(plan.seed, index))
                trial = study.ask(dict(plan.space))
                try:
                    _run(plan, references, study, trial, folder, jobs)
                except KeyboardInterrupt:
                    with suppress(SQLAlchemyError):
                        study.tell(trial, state=TrialState.FAIL)
                    raise Interrupted(index, trials) from None
                bar.set_postfix(loss=_best_loss(study))
                bar.update()
        done = [_trial(plan, index, one) for index, one in enumerate(_finished(study))]
        return Found(tuple(done), _importance(study), resumed)


def _run(  # noqa: PLR0913  a step of the search needs all of it
    plan: TuningPlan,
    references: Mapping[Source, Reference],
    study: optuna.Study,
    trial: optuna.Trial,
    folder: Path,
    jobs: int,
) -> None:
    """Run a trial's cells, ``jobs`` at a time, and tell the study how it ended."""
    cells = plan.runs(with_values(plan.base, rounded(trial.params)))
    losses: list[float] = []
    for start in range(0, len(cells), jobs):
        done = find_out(cells[start : start + jobs], folder, jobs=jobs, progress=False)
        for run, reason in done.failures.items():
            trial.set_user_attr(REASON, f"{run}: {reason}")
            study.tell(trial, state=TrialState.FAIL)
            return
        for run, played in done.results.items():
            losses.append(loss_of(played.metrics, references[run.source], plan.weights))
            trial.report(losses[-1], len(losses) - 1)
            if len(losses) < len(cells) and trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                return
    study.tell(trial, fmean(losses))


@contextmanager
def _opened(plan: TuningPlan, url: str, name: str) -> Iterator[optuna.Study]:
    """Open the study, made anew if it is not there, ready for its next trial.

    Raises
    ------
    InputError
        as :func:`search` does.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells every trial otherwise
    shown, storage = _storage(url)
    try:
        study = optuna.create_study(
            storage=storage, study_name=name, pruner=_pruner(plan.prune), load_if_exists=True
        )
        _check(study, plan, shown)
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(left.number, state=TrialState.FAIL)
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not waiting and not _finished(study):
            study.enqueue_trial(values_of(plan.base, list(plan.space)))
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise InputError(f"cannot use the storage: {_line(error)}", source=shown) from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _storage(url: str) -> tuple[str, RDBStorage]:
    """Return the storage, and its URL as it may be shown."""
    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        raise InputError(f"expected an SQLAlchemy URL, found {url!r:.60}", field="--storage") from None
    try:
        return shown, RDBStorage(url)
    except (
        SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, RuntimeError, ValueError
    ) as error:  # fmt: skip
        raise InputError(f"cannot use the storage: {_line(error)}", source=shown) from None


def _line(error: BaseException) -> str:
    """Return the first line of an error; SQLAlchemy adds the statement and links in further ones."""
    return str(error.__cause__ or error).splitlines()[0]


def _check(study: optuna.Study, plan: TuningPlan, shown: str) -> None:
    """Note what the study depends on, or compare it with what is noted."""
    digests = plan.digests()
    noted = study.user_attrs.get(ATTRIBUTE)
    if noted is None and not study.get_trials(deepcopy=False):
        study.set_user_attr(ATTRIBUTE, digests)
        return
    if not isinstance(noted, dict):
        raise InputError(f"{study.study_name!r} is another study: choose another --study", source=shown)
    for words, digest in digests.items():
        if noted.get(words) != digest:
            raise InputError(
                f"the study {study.study_name!r} was made with {words}: choose another folder, or --study",
                source=shown,
            )


def _pruner(p_value: float) -> BasePruner:
    if not p_value:
        return NopPruner()
    with warnings.catch_warnings():
        # Its interface may change, says Optuna: pyproject.toml bounds the version.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return WilcoxonPruner(p_threshold=p_value)


def _seed(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4], "big")


def _finished(study: optuna.Study) -> Sequence[FrozenTrial]:
    """Return the trials that count: complete, pruned, or failed for a reason of their own."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    every = study.get_trials(deepcopy=False, states=states)
    return [one for one in every if one.state != TrialState.FAIL or REASON in one.user_attrs]


_STATES = {
    TrialState.COMPLETE: State.COMPLETE,
    TrialState.PRUNED: State.PRUNED,
    TrialState.FAIL: State.FAILED,
}


def _trial(plan: TuningPlan, index: int, frozen: FrozenTrial) -> Trial:
    values: dict[str, Value] = {name: frozen.params[name] for name in plan.space}
    losses = list(frozen.intermediate_values.values())
    return Trial(
        index=index,
        state=_STATES[frozen.state],
        params=with_values(plan.base, rounded(values)),
        cells=len(losses),
        loss=fmean(losses) if losses else None,
        reason=frozen.user_attrs.get(REASON, ""),
    )


def _best_loss(study: optuna.Study) -> str:
    found = [one.value for one in study.get_trials(deepcopy=False) if one.state == TrialState.COMPLETE]
    return f"{min(value for value in found if value is not None):.4f}" if found else "-"


def _importance(study: optuna.Study) -> dict[str, float] | None:
    """Return PED-ANOVA's importances, largest first: no chance enters, and no forest of scikit-learn."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < ENOUGH:
        return None
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    found = get_param_importances(study, evaluator=evaluator)
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))
