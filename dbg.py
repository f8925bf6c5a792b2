from try5 import *
prof=load_profile("study")
o=WorkloadOptions(prefix_tokens=12000)
r=rate_for_load("chain-3",0.5,prof,60,1,o); tr=generate("chain-3",rate_per_s=r,tasks=60,seed=1,options=o)
for b in ("lpm","spf","parrot-fcfs"): m=simulate(tr,b,prof).metrics; print(b,m["mean_jct_s"],m["mean_batch"],m["prefix_loads"])
K=RP.K
for nm,b in (("lpm",K.LPM),("spf",K.SPF),("p8",K.P8),("parrot",K.PARROT)):
    m=simulate(tr,RP.policy(bases=(b,),rules=(),caps=(),preempt=0,margin=9),prof).metrics; print(nm,m["mean_jct_s"],m["mean_batch"],m["prefix_loads"],m["decisions"])
