package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// allocateRequest is one line of input of `oracle allocate`: a small cluster and the claims of one pod.
type allocateRequest struct {
	ID json.RawMessage `json:"id"`
	// Slices are all ResourceSlices of the cluster, Classes all DeviceClasses.
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	// Claims are to be allocated together, in this order.
	Claims []*resourceapi.ResourceClaim `json:"claims"`
	// Allocated are other claims; those with status.allocation hold their devices.
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Nodes     []*v1.Node                   `json:"nodes"`
	// Features are gate names added to, or with a leading "-" removed from, the defaults of 1.37.
	Features []string `json:"features"`
	// Bench is how many times to repeat each node's call, for timing; calls from nothing are repeated a
	// hundredth as often.
	Bench int `json:"bench"`
	// Again asks the allocator of the request before for that request's claims, on Nodes; nothing else is read.
	Again bool `json:"again"`
}

type nodeAnswer struct {
	Node string `json:"node"`
	// Results has one allocation a claim, or is null when the node does not fit.
	Results []resourceapi.AllocationResult `json:"results"`
	// Error is fatal for the pod unless NodeError, which rules out only this node.
	Error     string `json:"error,omitempty"`
	NodeError bool   `json:"nodeError,omitempty"`
	Panic     string `json:"panic,omitempty"`
	// Nanos is the time of Allocate alone, with an allocator that is there; WholeNanos (only with Bench) that of
	// gathering the allocated state, NewAllocator and Allocate, which is what the first node of a pod costs.
	Nanos      int64 `json:"nanos"`
	WholeNanos int64 `json:"wholeNanos,omitempty"`
}

type allocateAnswer struct {
	ID    json.RawMessage `json:"id"`
	Nodes []nodeAnswer    `json:"nodes"`
	// Error is set when no allocator could be made at all.
	Error string `json:"error,omitempty"`
}

type allocateOracle struct {
	caches map[dracel.Features]*dracel.Cache
	// What the last request that was not Again left.
	allocator structured.Allocator
	claims    []*resourceapi.ResourceClaim
}

func newAllocateOracle() *allocateOracle {
	return &allocateOracle{caches: map[dracel.Features]*dracel.Cache{}}
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("deviceclass %q not found", name)
}

func (o *allocateOracle) answer(line []byte) any {
	var request allocateRequest
	if err := json.Unmarshal(line, &request); err != nil {
		panic(err)
	}
	answer := allocateAnswer{ID: request.ID, Nodes: []nodeAnswer{}}
	ctx := context.Background()
	if request.Again {
		for _, node := range request.Nodes {
			answer.Nodes = append(answer.Nodes, allocateOn(ctx, o.allocator, node, o.claims))
		}
		return answer
	}
	features, err := featuresOf(request.Features)
	if err != nil {
		panic(err)
	}
	celFeatures := dracel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity, EnableListTypeAttributes: features.ListTypeAttributes,
	}
	if o.caches[celFeatures] == nil {
		o.caches[celFeatures] = dracel.NewCache(1000, celFeatures)
	}
	newAllocator := func() (structured.Allocator, error) {
		return structured.NewAllocator(
			ctx, features, allocatedState(request.Allocated, features), classes(request.Classes), request.Slices, o.caches[celFeatures],
		)
	}
	allocator, err := newAllocator()
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	o.allocator, o.claims = allocator, request.Claims
	for _, node := range request.Nodes {
		one := allocateOn(ctx, allocator, node, request.Claims)
		if request.Bench > 0 {
			started := time.Now()
			for range request.Bench {
				allocateOn(ctx, allocator, node, request.Claims)
			}
			one.Nanos = time.Since(started).Nanoseconds() / int64(request.Bench)
			wholes := max(1, request.Bench/100)
			started = time.Now()
			for range wholes {
				// Made without an error a moment ago.
				fresh, _ := newAllocator()
				allocateOn(ctx, fresh, node, request.Claims)
			}
			one.WholeNanos = time.Since(started).Nanoseconds() / int64(wholes)
		}
		answer.Nodes = append(answer.Nodes, one)
	}
	return answer
}

func allocateOn(
	ctx context.Context, allocator structured.Allocator, node *v1.Node, claims []*resourceapi.ResourceClaim,
) (answer nodeAnswer) {
	answer.Node = node.Name
	defer func() {
		if r := recover(); r != nil {
			answer.Panic = fmt.Sprint(r)
		}
	}()
	started := time.Now()
	results, err := allocator.Allocate(ctx, node, claims)
	answer.Nanos = time.Since(started).Nanoseconds()
	if err != nil {
		answer.Error = err.Error()
		answer.NodeError = errors.Is(err, structured.ErrFailedAllocationOnNode)
		return answer
	}
	answer.Results = results
	return answer
}

// allocatedState tells which devices are taken, by the scheduler's rules: results with admin access hold
// nothing, results with a share ID hold part of their device, all others hold all of it.
func allocatedState(claims []*resourceapi.ResourceClaim, features structured.Features) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID != nil && features.ConsumableCapacity:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}

// featuresOf starts from what kube-scheduler 1.37 enables by default.
func featuresOf(changes []string) (structured.Features, error) {
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
	for _, change := range changes {
		enable := change[0] != '-'
		name := change
		if !enable {
			name = change[1:]
		}
		switch name {
		case "DRAAdminAccess":
			features.AdminAccess = enable
		case "DRADeviceCompatibilityGroups":
			features.CompatibilityGroups = enable
		case "DRAConsumableCapacity":
			features.ConsumableCapacity = enable
		case "DRADerivedAttributes":
			features.DerivedAttributes = enable
		case "DRADeviceBindingConditions":
			features.DeviceBindingAndStatus = enable
		case "DRADeviceTaints":
			features.DeviceTaints = enable
		case "DRAFractionalCapacityRange":
			features.FractionalCapacityRange = enable
		case "DRAListTypeAttributes":
			features.ListTypeAttributes = enable
		case "DRAOptionalNodeOperations":
			features.OptionalNodeOperations = enable
		case "DRAPartitionableDevices":
			features.PartitionableDevices = enable
		case "DRAPrioritizedList":
			features.PrioritizedList = enable
		default:
			return features, fmt.Errorf("unknown feature %q", name)
		}
	}
	return features, nil
}
