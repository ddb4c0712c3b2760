// SPDX-License-Identifier: Apache-2.0

// Karpenter's decision on a snapshot of dlrun (lib/core/autoscale/snapshot.h): what Provisioner.Schedule
// does behind its listing of pods and pools, with default settings but that preferences are ignored.
//
//	karpenter [-rounds 5] [-enough SECONDS] [-cpus 1] SNAPSHOT      prints one line of JSON
//
// Groups with equal machines are one instance type with an offering for each; equal taints are one
// NodePool, whose limit of GPUs is the snapshot's limit of nodes. Karpenter knows no gangs: "same":
// "zone" becomes a required affinity of its pods to each other, as its users write it. Constraints
// that dlrun names unsupported are set here.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	scheduler "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// The benchmark writes amounts as quantities or numbers, and leaves out what is not here.
type snapshot struct {
	Limits struct {
		Nodes int64 `json:"nodes"`
	} `json:"limits"`
	Shapes map[string]struct {
		Request     map[string]any      `json:"request"`
		Tolerations []corev1.Toleration `json:"tolerations"`
		Unsupported []string            `json:"unsupported"`
	} `json:"shapes"`
	Gangs map[string]struct {
		Same string `json:"same"`
	} `json:"gangs"`
	Pods []struct {
		Name, Shape, Node, Gang string
		Count                   int
		Since                   time.Time
	} `json:"pods"`
	Nodes []struct {
		Name, Group string
		Labels      map[string]string
		Taints      []corev1.Taint
		Room        map[string]any
	} `json:"nodes"`
	Groups []struct {
		ID       string `json:"id"`
		Spot     bool
		Price    float64
		Template struct {
			Labels map[string]string
			Taints []corev1.Taint
			Room   map[string]any
		}
	} `json:"groups"`
}

const gpu = "nvidia.com/gpu"

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func amounts(of map[string]any, pods string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if pods != "" {
		list[corev1.ResourcePods] = resource.MustParse(pods)
	}
	for name, amount := range of {
		list[corev1.ResourceName(name)] = must(resource.ParseQuantity(fmt.Sprint(amount)))
	}
	return list
}

// As the kwok provider of Karpenter makes them, without what it takes off for the kubelet: rooms are what can be allocated.
func supply(s *snapshot) ([]*v1.NodePool, map[string][]*cloudprovider.InstanceType) {
	pools, types := []*v1.NodePool{}, map[string][]*cloudprovider.InstanceType{}
	byTaints, byRoom := map[string]*v1.NodePool{}, map[string]*cloudprovider.InstanceType{}
	for _, group := range s.Groups {
		taints := string(must(json.Marshal(group.Template.Taints)))
		pool := byTaints[taints]
		if pool == nil {
			pool = &v1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pool-%d", len(pools)), UID: uuid.NewUUID()}}
			pool.Spec.Template.Spec.Taints = group.Template.Taints
			pool.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass", Name: "default"}
			pool.Spec.Template.Spec.Requirements = []v1.NodeSelectorRequirementWithMinValues{
				{Key: v1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{v1.CapacityTypeSpot, v1.CapacityTypeOnDemand}}}
			byTaints[taints] = pool
			pools = append(pools, pool)
		}
		room := taints + string(must(json.Marshal(group.Template.Room)))
		machine := byRoom[room]
		if machine == nil {
			machine = &cloudprovider.InstanceType{Name: fmt.Sprintf("type-%d", len(byRoom)),
				Capacity: amounts(group.Template.Room, "110"), Overhead: &cloudprovider.InstanceTypeOverhead{}}
			byRoom[room] = machine
			types[pool.Name] = append(types[pool.Name], machine)
			// Within one decision Karpenter counts resources against a limit, not nodes.
			if gpus := machine.Capacity[gpu]; s.Limits.Nodes != 0 && !gpus.IsZero() {
				pool.Spec.Limits = v1.Limits{gpu: *resource.NewQuantity((s.Limits.Nodes-int64(len(s.Nodes)))*gpus.Value(), resource.DecimalSI)}
			}
		}
		capacity := v1.CapacityTypeOnDemand
		if group.Spot {
			capacity = v1.CapacityTypeSpot
		}
		machine.Offerings = append(machine.Offerings, &cloudprovider.Offering{Price: group.Price, Available: true,
			Requirements: scheduling.NewLabelRequirements(map[string]string{v1.CapacityTypeLabelKey: capacity,
				corev1.LabelTopologyZone: group.Template.Labels[corev1.LabelTopologyZone]})})
	}
	for _, machine := range byRoom {
		values := map[string]map[string]bool{}
		for _, offering := range machine.Offerings {
			for key, requirement := range offering.Requirements {
				if values[key] == nil {
					values[key] = map[string]bool{}
				}
				values[key][requirement.Any()] = true
			}
		}
		machine.Requirements = scheduling.NewLabelRequirements(map[string]string{corev1.LabelInstanceTypeStable: machine.Name,
			corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"})
		for key, set := range values {
			machine.Requirements.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, slices.Sorted(maps.Keys(set))...))
		}
	}
	return pools, types
}

func zoneAffinity(key, value string) *corev1.Affinity {
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
		{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}}}}
}

func demand(s *snapshot) (waiting, running []*corev1.Pod) {
	for i, p := range s.Pods {
		shape := s.Shapes[p.Shape]
		for n := range max(p.Count, 1) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%d-%d", i, n), UID: uuid.NewUUID(),
				CreationTimestamp: metav1.NewTime(p.Since), Labels: map[string]string{"shape": p.Shape}}}
			pod.Spec.NodeName = p.Node
			pod.Spec.Tolerations = shape.Tolerations
			for t := range pod.Spec.Tolerations {
				if pod.Spec.Tolerations[t].Value == "" {
					pod.Spec.Tolerations[t].Operator = corev1.TolerationOpExists
				}
			}
			pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: amounts(shape.Request, "")}}}
			pod.Status.Phase = corev1.PodPending
			if p.Node != "" {
				pod.Status.Phase = corev1.PodRunning
				running = append(running, pod)
				continue
			}
			if p.Gang != "" {
				pod.Labels["gang"] = strings.ReplaceAll(p.Gang, "/", ".")
				if s.Gangs[p.Gang].Same == "zone" {
					pod.Spec.Affinity = zoneAffinity("gang", pod.Labels["gang"])
				}
			}
			for _, constraint := range shape.Unsupported {
				switch constraint {
				case "topologySpreadConstraints":
					pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone,
						WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"shape": p.Shape}}}}
				case "podAffinity":
					pod.Spec.Affinity = zoneAffinity("shape", p.Shape)
				default:
					log.Fatalf("%s is not known", constraint)
				}
			}
			waiting = append(waiting, pod)
		}
	}
	return waiting, running
}

func world(ctx context.Context, s *snapshot, kube client.Client, running []*corev1.Pod) *state.Cluster {
	cluster := state.NewCluster(clock.RealClock{}, kube, nil)
	for _, n := range s.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}}}
		maps.Copy(node.Labels, n.Labels)
		node.Spec.ProviderID, node.Spec.Taints = "kwok://"+n.Name, n.Taints
		for _, group := range s.Groups {
			if group.ID == n.Group {
				maps.Copy(node.Labels, group.Template.Labels)
			}
		}
		node.Status.Allocatable = amounts(n.Room, "110")
		node.Status.Capacity = node.Status.Allocatable
		if err := cluster.UpdateNode(ctx, node); err != nil {
			log.Fatal(err)
		}
	}
	for _, pod := range running {
		if err := cluster.UpdatePod(ctx, pod); err != nil {
			log.Fatal(err)
		}
	}
	return cluster
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// The kwok provider buys the cheapest that is left of a claim's choice.
func price(claim *scheduler.NodeClaim) float64 {
	least := math.Inf(1)
	for _, machine := range claim.InstanceTypeOptions {
		for _, offering := range machine.Offerings.Available().Compatible(claim.Requirements) {
			least = min(least, offering.Price)
		}
	}
	return least
}

type report struct {
	Program    string    `json:"program"`
	WallS      []float64 `json:"wall_s"`
	CPUS       []float64 `json:"cpu_s"`
	Nodes      int       `json:"nodes"`
	Price      float64   `json:"price"`
	Waiting    int       `json:"waiting"`
	Helped     int       `json:"helped"`
	OnFree     int       `json:"on_free"`
	Incomplete int       `json:"gangs_incomplete"`
	Wasted     int       `json:"nodes_of_incomplete"`
}

func (r *report) count(results scheduler.Results, waiting []*corev1.Pod) {
	gangs, helped := map[string]int{}, map[string]int{}
	for _, pod := range waiting {
		gangs[pod.Labels["gang"]]++
	}
	for _, node := range results.ExistingNodes {
		r.OnFree += len(node.Pods)
		for _, pod := range node.Pods {
			helped[pod.Labels["gang"]]++
		}
	}
	r.Helped = r.OnFree
	for _, claim := range results.NewNodeClaims {
		r.Helped += len(claim.Pods)
		r.Price += price(claim)
		for _, pod := range claim.Pods {
			helped[pod.Labels["gang"]]++
		}
	}
	partly := func(gang string) bool { return gang != "" && helped[gang] > 0 && helped[gang] < gangs[gang] }
	for gang := range gangs {
		if partly(gang) {
			r.Incomplete++
		}
	}
	for _, claim := range results.NewNodeClaims {
		if !slices.ContainsFunc(claim.Pods, func(pod *corev1.Pod) bool { return !partly(pod.Labels["gang"]) }) {
			r.Wasted++
		}
	}
	r.Nodes, r.Waiting = len(results.NewNodeClaims), len(waiting)
}

func main() {
	rounds := flag.Int("rounds", 5, "decisions on the same snapshot")
	enough := flag.Float64("enough", 120, "seconds of CPU after which no further one is begun")
	cpus := flag.Int("cpus", 1, "its CPU request, which says how many candidates it looks at at once")
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	var s snapshot
	if err := json.Unmarshal(must(os.ReadFile(flag.Arg(0))), &s); err != nil {
		log.Fatal(err)
	}
	runtime.GOMAXPROCS(*cpus)
	settings := &options.Options{CPURequests: int64(*cpus) * 1000, PreferencePolicy: options.PreferencePolicyIgnore,
		MinValuesPolicy: options.MinValuesPolicyStrict, IgnoreDRARequests: true, FeatureGates: options.DefaultFeatureGates()}
	ctx := options.ToContext(injection.WithControllerName(context.Background(), "provisioner"), settings)
	kube := fakeclient.NewClientBuilder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	}).Build()
	pools, types := supply(&s)
	waiting, running := demand(&s)
	cluster := world(ctx, &s, kube, running)
	ret := report{Program: "karpenter"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "sigs.k8s.io/karpenter" {
				ret.Program += " " + module.Version
			}
		}
	}
	chosen := []scheduler.Options{scheduler.DisableReservedCapacityFallback, scheduler.IgnorePreferences,
		scheduler.NumConcurrentReconciles(*cpus), scheduler.MinValuesPolicy(settings.MinValuesPolicy)}
	began := cpuSeconds()
	for round := range *rounds {
		pods := slices.Clone(waiting)
		runtime.GC()
		cpu, start := cpuSeconds(), time.Now()
		nodes := cluster.DeepCopyNodes().Active()
		topology := must(scheduler.NewTopology(ctx, kube, cluster, nodes, pools, types, pods, chosen...))
		made := scheduler.NewScheduler(ctx, kube, pools, cluster, nodes, topology, types, nil,
			events.NewRecorder(&record.FakeRecorder{}), clock.RealClock{}, nil, nil, chosen...)
		results := must(made.Solve(ctx, pods)).TruncateInstanceTypes(ctx, scheduler.MaxInstanceTypes)
		ret.WallS = append(ret.WallS, time.Since(start).Seconds())
		ret.CPUS = append(ret.CPUS, cpuSeconds()-cpu)
		if round == 0 {
			ret.count(results, waiting)
		}
		if cpuSeconds()-began > *enough {
			break
		}
	}
	fmt.Println(string(must(json.Marshal(ret))))
}
