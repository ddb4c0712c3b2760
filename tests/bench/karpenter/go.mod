// Karpenter's scheduler on a snapshot of dlrun; what it imports beside has the versions that Karpenter names.
module karpenter

go 1.26.0

require sigs.k8s.io/karpenter v1.14.1
