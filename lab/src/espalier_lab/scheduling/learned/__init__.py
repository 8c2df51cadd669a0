"""Learned allocation: one network scores each job and each option for the next gift.

How it is used, without torch:

    policy = read_policy(path)                     # `files`: a safetensors file with its lineage; `LearnedPolicyError`
    reason = policy.lineage.serves.refusal(gpus)   # None, or why this cluster is not one that it can serve
    decision = LearnedAllocation(policy).decide(view)   # `serving`: an `espalier_operator.policies.Policy`

A decision is made step by step. `description` defines the network's input on jobs, options and the cluster; `speeds`
computes the gains of more workers; `network` scores all (job, option) pairs and "stop" in numpy; the best one that fits
is given, until "stop" is the best. The network is the same for each job and reads the others through their mean, so it
accepts any number of jobs, in any order, and unknown types of jobs. `twin` is the same network in torch, for learning
only.
"""
