"""Learned allocation: one network scores, for each job and each thing that it could get more of, what to give next.

How it is used, without torch:

    policy = read_policy(path)                     # `files`: a safetensors file with its lineage; `LearnedPolicyError`
    reason = policy.lineage.serves.refusal(gpus)   # None, or why this cluster is not one that it can serve
    decision = LearnedAllocation(policy).decide(view)   # `serving`: an `espalier_operator.policies.Policy`

A decision is made step by step. `description` says what the network sees of jobs, of what they could get, and of the
cluster; `speeds` works out what more workers gain; `network` scores all (job, option) pairs and "stop" in numpy; the
best that fits is given, until "stop" is the best. The network is the same for each job and sees the others by their
mean, so it takes any number of jobs, in any order, and types of jobs that it never saw. `twin` is the same network in
torch, for learning only.
"""
