import sys, time, json
from topas.sim import simulate
from topas.profile import load_profile
from traces.workloads import generate, WorkloadOptions
from traces.load import rate_for_load
from topas.online.rollout import policy as RP, kernel as KK
RP.policy = RP.rollout; RP.K = KK
import numpy as np
def cell(wl, load, prefix, sigma, seed, prof, pols, tasks=60):
    o = WorkloadOptions(prefix_tokens=prefix, output_sigma=sigma) if not wl.startswith("metagpt") else WorkloadOptions(output_sigma=sigma)
    r = rate_for_load(wl, load, prof, tasks, seed, o)
    tr = generate(wl, rate_per_s=r, tasks=tasks, seed=seed, options=o)
    res = {}
    for n, pol in pols.items():
        t = time.time(); m = simulate(tr, pol, prof).metrics
        res[n] = (m["mean_jct_s"], m["p99_jct_s"], m["decision_ms_mean"], m["preemptions"], time.time()-t)
    return res
if __name__ == "__main__":
    prof = load_profile("study")
    wls = sys.argv[1].split(","); loads = [float(x) for x in sys.argv[2].split(",")]; prefix = int(sys.argv[3]); sigma = float(sys.argv[4]); seeds = [int(x) for x in sys.argv[5].split(",")]
    kws = [eval("dict(%s)" % a) for a in sys.argv[6:]] or [{}]
    K = RP.K
    for wl in wls:
        agg = {}
        for load in loads:
            for seed in seeds:
                pols = {b: b for b in ("fcfs", "lpm", "parrot-fcfs", "autellix-las", "spf")}
                for i, kw in enumerate(kws): pols[f"r{i}"] = RP.policy(**kw)
                res = cell(wl, load, prefix, sigma, seed, prof, pols)
                bm = min(res[b][0] for b in list(res)[:5]); bp = min(res[b][1] for b in list(res)[:5])
                for n in res: agg.setdefault((load, n), []).append((res[n][0], res[n][1], res[n][2], res[n][3], res[n][4]))
        for load in loads:
            base = {b: np.mean([x[:2] for x in agg[load, b]], axis=0) for b in ("fcfs", "lpm", "parrot-fcfs", "autellix-las", "spf")}
            bm = min(v[0] for v in base.values()); bp = min(v[1] for v in base.values())
            print(wl, load, "best base %.1f %.1f" % (bm, bp), *["%s %.1f %.1f (%+.0f/%+.0f%%) %.2fms pre%d %.0fs" % (n, *np.mean([x[:2] for x in agg[load, n]], axis=0), 100*(np.mean([x[0] for x in agg[load, n]])/bm-1), 100*(np.mean([x[1] for x in agg[load, n]])/bp-1), np.mean([x[2] for x in agg[load, n]]), np.mean([x[3] for x in agg[load, n]]), np.mean([x[4] for x in agg[load,n]])) for n in agg_names(agg) ] if False else ["r%d %.1f %.1f (%+.0f/%+.0f%%) %.1fms pre%d" % (i, *np.mean([x[:2] for x in agg[load, f"r{i}"]], axis=0), 100*(np.mean([x[0] for x in agg[load, f"r{i}"]])/bm-1), 100*(np.mean([x[1] for x in agg[load, f"r{i}"]])/bp-1), np.mean([x[2] for x in agg[load, f"r{i}"]]), np.mean([x[3] for x in agg[load, f"r{i}"]])) for i in range(len(kws))], flush=True)

