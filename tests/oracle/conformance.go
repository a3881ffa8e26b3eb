package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	celpb "cel.dev/expr"
	_ "cel.dev/expr/conformance/proto2"
	_ "cel.dev/expr/conformance/proto3"
	testpb "cel.dev/expr/conformance/test"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"google.golang.org/protobuf/encoding/prototext"
)

// A test of the CEL specification as the Kubernetes environment sees it: what the suite expects, and what
// cel-go does with it in that environment (plus the test's own variables). Tests that need protobuf
// messages, unchecked evaluation or other things that Kubernetes does not have are named in Left.
type conformanceTest struct {
	Section    string         `json:"section"`
	Name       string         `json:"name"`
	Expression string         `json:"expression"`
	Container  string         `json:"container,omitempty"`
	Variables  []testVariable `json:"variables,omitempty"`
	CheckOnly  bool           `json:"checkOnly,omitempty"`
	// Value, Type and Fails are what the suite expects; a test with none of them expects true.
	Value map[string]any `json:"value,omitempty"`
	Type  string         `json:"type,omitempty"`
	Fails bool           `json:"fails,omitempty"`
	Left  string         `json:"left,omitempty"`
	Go    *celAnswer     `json:"go,omitempty"`
}

type testVariable struct {
	Name  string         `json:"name"`
	Type  string         `json:"type"`
	Value map[string]any `json:"value,omitempty"`
}

type conformanceFile struct {
	ID    json.RawMessage   `json:"id"`
	Name  string            `json:"name"`
	Tests []conformanceTest `json:"tests"`
}

type conformanceOracle struct{ cel *celOracle }

func newConformanceOracle() *conformanceOracle { return &conformanceOracle{newCELOracle()} }

// answer reads one file of the suite, named by {"id", "path"}.
func (o *conformanceOracle) answer(line []byte) any {
	var request struct {
		ID   json.RawMessage `json:"id"`
		Path string          `json:"path"`
	}
	if err := json.Unmarshal(line, &request); err != nil {
		panic(err)
	}
	text, err := os.ReadFile(request.Path)
	if err != nil {
		panic(err)
	}
	file := conformanceFile{ID: request.ID, Name: strings.TrimSuffix(filepath.Base(request.Path), ".textproto")}
	// The blank imports above register the messages that some tests carry inside Any.
	var suite testpb.SimpleTestFile
	if err := prototext.Unmarshal(text, &suite); err != nil {
		panic(fmt.Sprintf("%s: %v", request.Path, err))
	}
	for _, section := range suite.GetSection() {
		for _, test := range section.GetTest() {
			file.Tests = append(file.Tests, o.convert(section.GetName(), test))
		}
	}
	return file
}

func (o *conformanceOracle) convert(section string, test *testpb.SimpleTest) (result conformanceTest) {
	result = conformanceTest{
		Section: section, Name: test.GetName(), Expression: test.GetExpr(), Container: test.GetContainer(),
		CheckOnly: test.GetCheckOnly(),
	}
	defer func() {
		if r := recover(); r != nil {
			result.Left = fmt.Sprint(r)
		}
	}()
	if test.GetDisableMacros() {
		result.Left = "macros disabled"
		return result
	}
	if test.GetDisableCheck() {
		result.Left = "unchecked evaluation"
		return result
	}
	options := []cel.EnvOption{}
	if test.GetContainer() != "" {
		options = append(options, cel.Container(test.GetContainer()))
	}
	variables := map[string]any{}
	for _, decl := range test.GetTypeEnv() {
		if decl.GetIdent() == nil {
			result.Left = "declares a function"
			return result
		}
		kind, err := types.ProtoAsType(decl.GetIdent().GetType())
		if err != nil {
			result.Left = err.Error()
			return result
		}
		options = append(options, cel.Variable(decl.GetName(), kind))
		variable := testVariable{Name: decl.GetName(), Type: kind.String()}
		if binding, ok := test.GetBindings()[decl.GetName()]; ok {
			value, err := cel.ProtoAsValue(o.cel.admission.CELTypeAdapter(), binding.GetValue())
			if err != nil {
				result.Left = err.Error()
				return result
			}
			variables[decl.GetName()] = value
			variable.Value = typed(value)
		}
		result.Variables = append(result.Variables, variable)
	}
	expect(o.cel.admission, &result, test)
	if result.Left != "" {
		return result
	}
	env, err := o.cel.admission.Extend(options...)
	if err != nil {
		result.Left = err.Error()
		return result
	}
	answer := &celAnswer{}
	result.Go = answer
	defer func() {
		if r := recover(); r != nil {
			answer.Panic = fmt.Sprint(r)
		}
	}()
	checked, issues := env.Compile(test.GetExpr())
	if issues.Err() != nil {
		stage := "check"
		if _, parse := env.Parse(test.GetExpr()); parse.Err() != nil {
			stage = "parse"
		}
		answer.CompileError = compileFailure(stage, issues)
		return result
	}
	answer.OutType = checked.OutputType().String()
	answer.EstDyn = estimate(env, checked, nil)
	program, err := env.Program(checked)
	if err != nil {
		answer.CompileError = &compileError{Kind: "type", Stage: "program", Message: err.Error()}
		return result
	}
	run := func() outcome {
		value, details, err := program.Eval(variables)
		return finish(value, details, err)
	}
	outcome := run()
	answer.Unstable = unstable(checked, run, outcome)
	answer.Value, answer.Error, answer.Cost, answer.CostExceeded = outcome.value, outcome.err, outcome.cost, outcome.exceeded
	return result
}

func expect(env *cel.Env, result *conformanceTest, test *testpb.SimpleTest) {
	value := func(v *celpb.Value) map[string]any {
		converted, err := cel.ProtoAsValue(env.CELTypeAdapter(), v)
		if err != nil {
			result.Left = err.Error()
			return nil
		}
		return typed(converted)
	}
	switch matcher := test.GetResultMatcher().(type) {
	case nil:
		result.Value = map[string]any{"bool": true}
	case *testpb.SimpleTest_Value:
		result.Value = value(matcher.Value)
	case *testpb.SimpleTest_TypedResult:
		if matcher.TypedResult.GetResult() != nil {
			result.Value = value(matcher.TypedResult.GetResult())
		}
		if kind, err := types.ProtoAsType(matcher.TypedResult.GetDeducedType()); err == nil {
			result.Type = kind.String()
		}
	case *testpb.SimpleTest_EvalError, *testpb.SimpleTest_AnyEvalErrors:
		result.Fails = true
	default:
		result.Left = "expects an unknown"
	}
}
