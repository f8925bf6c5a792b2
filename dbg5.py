from try5 import *
from topas.policies import JointPolicy
prof=load_profile("study"); K=RP.K
for n in (1,2,3,6,12):
    o=WorkloadOptions(prefix_tokens=12000)
    tr=generate("chain-3",rate_per_s=1000,tasks=n,seed=1,options=o)
    pred=[]
    def dec(e):
        if len(e.tasks)==n:
            p,st,ids,out,ag=RP.build(e,1,RP.DEFAULT|dict(tail=0.0)); s=RP.scratch(p)
            pred.append((round(e.time_s,2),round(e.time_s+K.roll(0,0,st,s.taken,0,p,s,out[0],10000,1.0),2)))
        return RP.decide_with(e,RP.DEFAULT|dict(bases=(0,),rules=(),caps=(),preempt=0,margin=9))
    m=simulate(tr,JointPolicy("x",dec),prof).metrics
    print(n, m["mean_jct_s"], pred[:8])
