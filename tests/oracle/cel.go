package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	resourceapi "k8s.io/api/resource/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// sizeHint bounds every string, list and map below `object`: the limit on opaque device
// configuration, OpaqueParametersMaxLength of resource.k8s.io.
const sizeHint = resourceapi.OpaqueParametersMaxLength

// celRequest is one line of input of `oracle cel`.
type celRequest struct {
	ID         json.RawMessage `json:"id"`
	Expression string          `json:"expression"`
	// Env is "admission" (variable object, the default), "device" (a DRA selector, variable device)
	// or "device-any" (the same, without the rule on the type of a selector's result).
	Env string `json:"env"`
	// Object is the JSON value of `object`; for the device environments
	// {"driver", "attributes", "capacity", "allowMultipleAllocations"} as in a ResourceSlice.
	Object json.RawMessage `json:"object"`
	// CompileOnly leaves out the run.
	CompileOnly bool `json:"compileOnly"`
	// CostLimit is the run-time limit, 1,000,000 when absent.
	CostLimit *uint64 `json:"costLimit"`
	// References asks for the overloads that the checker chose.
	References bool `json:"references"`
	// Bench is how many times to compile and to run, for timing; 0 is not at all.
	Bench int `json:"bench"`
}

type issue struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

type compileError struct {
	// Kind is "parse" or "type"; Stage is "parse", "check", "output" (the type of a selector) or "program".
	Kind    string  `json:"kind"`
	Stage   string  `json:"stage"`
	Message string  `json:"message"`
	Issues  []issue `json:"issues,omitempty"`
}

type reference struct {
	Line      int      `json:"line"`
	Column    int      `json:"column"`
	Function  string   `json:"function,omitempty"`
	Type      string   `json:"type,omitempty"`
	Overloads []string `json:"overloads,omitempty"`
}

type celAnswer struct {
	ID           json.RawMessage `json:"id"`
	CompileError *compileError   `json:"compileError,omitempty"`
	Panic        string          `json:"panic,omitempty"`
	OutType      string          `json:"outType,omitempty"`
	EstDyn       *[2]string      `json:"estDyn,omitempty"`
	EstHint      *[2]string      `json:"estHint,omitempty"`
	EstDevice    *[2]string      `json:"estDevice,omitempty"`
	Value        map[string]any  `json:"value,omitempty"`
	Error        string          `json:"error,omitempty"`
	CostExceeded bool            `json:"costExceeded,omitempty"`
	Cost         string          `json:"cost,omitempty"`
	Unstable     bool            `json:"unstable,omitempty"`
	References   []reference     `json:"references,omitempty"`
	CompileNanos int64           `json:"compileNanos,omitempty"`
	RunNanos     int64           `json:"runNanos,omitempty"`
}

type celOracle struct {
	admission *cel.Env
	device    *cel.Env
}

func newCELOracle() *celOracle {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	extended, err := base.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{cel.Variable("object", cel.DynType)},
	})
	if err != nil {
		panic(err)
	}
	admission, err := extended.Env(environment.StoredExpressions)
	if err != nil {
		panic(err)
	}
	probe := deviceCompile("true", dracel.Options{})
	if probe.Error != nil {
		panic(probe.Error)
	}
	return &celOracle{admission: admission, device: probe.Environment}
}

func deviceCompile(expression string, options dracel.Options) dracel.CompilationResult {
	return dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, options)
}

func (o *celOracle) answer(line []byte) any {
	var request celRequest
	if err := json.Unmarshal(line, &request); err != nil {
		panic(err)
	}
	answer := celAnswer{ID: request.ID}
	o.fill(&request, &answer)
	return &answer
}

// fill turns a panic of cel-go into part of the answer; what was found before it stays.
func (o *celOracle) fill(request *celRequest, answer *celAnswer) {
	defer func() {
		if r := recover(); r != nil {
			answer.Panic = fmt.Sprint(r)
		}
	}()
	env := o.admission
	if request.Env == "device" || request.Env == "device-any" {
		env = o.device
	} else if request.Env != "" && request.Env != "admission" {
		panic("unknown env " + request.Env)
	}

	started := time.Now()
	parsed, issues := env.Parse(request.Expression)
	if issues.Err() != nil {
		answer.CompileError = compileFailure("parse", issues)
		return
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		answer.CompileError = compileFailure("check", issues)
		return
	}
	answer.OutType = checked.OutputType().String()
	if request.References {
		answer.References = references(checked)
	}

	var program cel.Program
	var selector *dracel.CompilationResult
	if env == o.admission {
		answer.EstDyn = estimate(env, checked, nil)
		answer.EstHint = estimate(env, checked, objectSizes{})
	} else {
		result := deviceCompile(request.Expression, dracel.Options{CostLimit: request.CostLimit})
		if result.Error != nil && request.Env == "device-any" && strings.HasPrefix(result.Error.Detail, "must evaluate to") {
			result = deviceCompile(request.Expression, dracel.Options{CostLimit: request.CostLimit, DerivedAttribute: true})
		}
		if result.Error != nil {
			stage := "program"
			if strings.HasPrefix(result.Error.Detail, "must evaluate to") {
				stage = "output"
			}
			if stage == "program" || request.Env == "device" {
				answer.CompileError = &compileError{Kind: "type", Stage: stage, Message: result.Error.Detail}
				return
			}
		} else {
			selector = &result
		}
		answer.EstDevice = estimate(env, checked, deviceSizes{})
		if selector != nil && strconv.FormatUint(selector.MaxCost, 10) != answer.EstDevice[1] {
			panic(fmt.Sprintf("oracle: the estimate differs from upstream's: %s, not %d", answer.EstDevice[1], selector.MaxCost))
		}
	}
	options := []cel.ProgramOption{}
	if request.CostLimit != nil {
		options = append(options, cel.CostLimit(*request.CostLimit))
	}
	program, err := env.Program(checked, options...)
	if err != nil {
		answer.CompileError = &compileError{Kind: "type", Stage: "program", Message: err.Error()}
		return
	}
	if request.Bench > 0 {
		started = time.Now()
		for range request.Bench {
			compiled, issues := env.Compile(request.Expression)
			if issues.Err() != nil {
				panic(issues.Err())
			}
			if _, err := env.Program(compiled, options...); err != nil {
				panic(err)
			}
		}
		answer.CompileNanos = time.Since(started).Nanoseconds() / int64(request.Bench)
	} else {
		answer.CompileNanos = time.Since(started).Nanoseconds()
	}
	if request.CompileOnly {
		return
	}

	run, err := runner(request, env == o.device, program, o.device)
	if err != nil {
		panic(err)
	}
	started = time.Now()
	outcome := run()
	answer.RunNanos = time.Since(started).Nanoseconds()
	answer.Value, answer.Error, answer.Cost, answer.CostExceeded = outcome.value, outcome.err, outcome.cost, outcome.exceeded
	answer.Unstable = unstable(checked, run, outcome)
	if request.Bench > 0 {
		started = time.Now()
		for range request.Bench {
			run()
		}
		answer.RunNanos = time.Since(started).Nanoseconds() / int64(request.Bench)
	}
}

type outcome struct {
	value    map[string]any
	err      string
	cost     string
	exceeded bool
	raw      ref.Val
}

// runner prepares the variables once and returns a function that evaluates the program.
func runner(request *celRequest, device bool, program cel.Program, env *cel.Env) (func() outcome, error) {
	if device {
		return deviceRunner(request, program, env)
	}
	var object any
	if len(request.Object) > 0 {
		// As the API server decodes a custom resource: int64 where a number fits, else float64.
		if err := kjson.Unmarshal(request.Object, &object); err != nil {
			return nil, fmt.Errorf("object: %w", err)
		}
	}
	variables := map[string]any{"object": object}
	return func() outcome {
		value, details, err := program.ContextEval(context.Background(), variables)
		return finish(value, details, err)
	}, nil
}

func finish(value ref.Val, details *cel.EvalDetails, err error) outcome {
	var result outcome
	if details != nil && details.ActualCost() != nil {
		result.cost = strconv.FormatUint(*details.ActualCost(), 10)
	}
	if err != nil {
		result.err = err.Error()
		result.exceeded = strings.Contains(result.err, "actual cost limit exceeded")
		return result
	}
	result.raw = value
	return result.withValue()
}

func (o outcome) withValue() outcome {
	o.value = typed(o.raw)
	return o
}

// capture stands in for a compiled program inside upstream's CompilationResult, so that the variables
// are built by upstream and the raw result, which upstream converts to bool, is still seen.
type capture struct {
	cel.Program
	value   ref.Val
	details *cel.EvalDetails
	err     error
}

var errCaptured = errors.New("captured")

func (c *capture) ContextEval(ctx context.Context, input any) (ref.Val, *cel.EvalDetails, error) {
	c.value, c.details, c.err = c.Program.ContextEval(ctx, input)
	return nil, c.details, errCaptured
}

func deviceRunner(request *celRequest, program cel.Program, env *cel.Env) (func() outcome, error) {
	var device struct {
		Driver                   string                                                    `json:"driver"`
		AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
		Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
		Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
	}
	if len(request.Object) > 0 {
		if err := json.Unmarshal(request.Object, &device); err != nil {
			return nil, fmt.Errorf("object: %w", err)
		}
	}
	input := dracel.Device{
		Driver: device.Driver, AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes: device.Attributes, Capacity: device.Capacity,
	}
	frame := deviceCompile("true", dracel.Options{})
	return func() outcome {
		captured := &capture{Program: program}
		frame := frame
		frame.Program = captured
		if _, _, err := frame.DeviceMatches(context.Background(), input); !errors.Is(err, errCaptured) {
			return outcome{err: "device: " + err.Error()}
		}
		return finish(captured.value, captured.details, captured.err)
	}, nil
}

func compileFailure(stage string, issues *cel.Issues) *compileError {
	kind := "type"
	if stage == "parse" {
		kind = "parse"
	}
	result := &compileError{Kind: kind, Stage: stage, Message: issues.String()}
	for _, e := range issues.Errors() {
		result.Issues = append(result.Issues, issue{e.Location.Line(), e.Location.Column() + 1, e.Message})
	}
	return result
}

func estimate(env *cel.Env, checked *cel.Ast, sizes checker.CostEstimator) *[2]string {
	result, err := env.EstimateCost(checked, &library.CostEstimator{SizeEstimator: sizes})
	if err != nil {
		panic(err)
	}
	return &[2]string{strconv.FormatUint(result.Min, 10), strconv.FormatUint(result.Max, 10)}
}

// objectSizes bounds everything below `object` by sizeHint.
type objectSizes struct{}

func (objectSizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	if path := element.Path(); len(path) > 0 && path[0] == "object" {
		return &checker.SizeEstimate{Min: 0, Max: sizeHint}
	}
	return nil
}

func (objectSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// deviceSizes restates the sizes that upstream declares for `device`, since upstream tells only the
// maximum of an estimate; every answer is compared with that maximum.
type deviceSizes struct{}

func (deviceSizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 || path[0] != "device" {
		return nil
	}
	const maxNames = resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice
	value := uint64(max(resourceapi.DeviceAttributeMaxValueLength, resourceapi.ResourceSliceMaxAttributeValuesPerDevice))
	bound := func(size uint64) *checker.SizeEstimate { return &checker.SizeEstimate{Max: size} }
	if len(path) == 1 {
		return bound(deviceElements())
	}
	switch path[1] {
	case "driver":
		if len(path) == 2 {
			return bound(resourceapi.DriverNameMaxLength)
		}
	case "allowMultipleAllocations":
		if len(path) == 2 {
			return bound(1)
		}
	case "attributes", "capacity":
		if len(path) == 2 {
			return bound(maxNames)
		}
		switch path[2] {
		case "@keys":
			return bound(resourceapi.DeviceMaxDomainLength)
		case "@items", "@values":
		default:
			return nil
		}
		if len(path) == 3 {
			return bound(maxNames)
		}
		if len(path) > 4 {
			return nil
		}
		if path[3] == "@keys" {
			return bound(resourceapi.DeviceMaxIDLength)
		}
		if path[1] == "attributes" {
			return bound(value)
		}
		if path[3] == "@items" || path[3] == "@values" {
			return bound(0)
		}
	}
	return nil
}

func (deviceSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

func deviceElements() uint64 { return 0 }

// references lists what the checker decided, in source order.
func references(checked *cel.Ast) []reference {
	native := checked.NativeRep()
	result := []reference{}
	ast.PostOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		entry := reference{Type: native.GetType(e.ID()).String(), Overloads: native.GetOverloadIDs(e.ID())}
		if e.Kind() == ast.CallKind {
			entry.Function = e.AsCall().FunctionName()
		} else {
			entry.Function = fmt.Sprintf("kind %d", e.Kind())
		}
		location := native.SourceInfo().GetStartLocation(e.ID())
		entry.Line, entry.Column = location.Line(), location.Column()+1
		result = append(result, entry)
	}))
	slices.SortStableFunc(result, func(a, b reference) int { return (a.Line-b.Line)*100000 + a.Column - b.Column })
	return result
}

// unstable runs again and again to find out whether an outcome depends on the order of a map's entries.
// Go starts the walk over a small map at one of eight places, so one order may be seven times as likely as
// another; 100 runs miss it about twice in a million.
func unstable(checked *cel.Ast, run func() outcome, first outcome) bool {
	if !orderMatters(checked) {
		return false
	}
	text, _ := json.Marshal(first.value)
	deadline := time.Now().Add(20 * time.Millisecond)
	for i := 0; i < 100 && time.Now().Before(deadline); i++ {
		again := run()
		other, _ := json.Marshal(again.value)
		if string(text) != string(other) || again.err != first.err || again.cost != first.cost {
			return true
		}
	}
	return false
}

// orderMatters tells whether the result may depend on the order of a map's entries, which Go chooses at
// random: only comprehensions see it, and not those over lists.
func orderMatters(checked *cel.Ast) bool {
	found := false
	native := checked.NativeRep()
	ast.PostOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.ComprehensionKind {
			kind := native.GetType(e.AsComprehension().IterRange().ID()).Kind()
			found = found || kind != types.ListKind
		}
	}))
	return found
}
