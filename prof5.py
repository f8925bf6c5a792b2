from try5 import *
import cProfile, pstats
prof=load_profile("study")
for wl in ("chain-3","dag-10-wide"):
    o=WorkloadOptions(prefix_tokens=12000)
    r=rate_for_load(wl,0.75,prof,60,1,o); tr=generate(wl,rate_per_s=r,tasks=60,seed=1,options=o)
    pol=RP.policy(); simulate(tr,pol,prof)
    pr=cProfile.Profile(); pr.enable(); m=simulate(tr,pol,prof).metrics; pr.disable()
    print(wl,m["mean_jct_s"],m["decisions"],m["decision_ms_mean"])
    pstats.Stats(pr).sort_stats("cumtime").print_stats(22)
