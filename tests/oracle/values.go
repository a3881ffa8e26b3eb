package main

import (
	"encoding/base64"
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// typed renders a CEL value as JSON that keeps its exact type: an object with one key, the type,
// whose value is text wherever JSON could lose something. Entries of maps are sorted by their keys.
func typed(v ref.Val) map[string]any {
	switch v := v.(type) {
	case types.Bool:
		return map[string]any{"bool": bool(v)}
	case types.Int:
		return map[string]any{"int": strconv.FormatInt(int64(v), 10)}
	case types.Uint:
		return map[string]any{"uint": strconv.FormatUint(uint64(v), 10)}
	case types.Double:
		return map[string]any{"double": double(float64(v))}
	case types.String:
		return map[string]any{"string": string(v)}
	case types.Bytes:
		return map[string]any{"bytes": base64.StdEncoding.EncodeToString([]byte(v))}
	case types.Null:
		return map[string]any{"null": true}
	case types.Timestamp:
		return map[string]any{"timestamp": v.Time.UTC().Format(time.RFC3339Nano)}
	case types.Duration:
		return map[string]any{"duration": strconv.FormatInt(int64(v.Duration), 10)}
	case *types.Optional:
		if !v.HasValue() {
			return map[string]any{"optional": []any{}}
		}
		return map[string]any{"optional": []any{typed(v.GetValue())}}
	case *types.Type:
		return map[string]any{"type": v.String()}
	case *apiservercel.Quantity:
		return map[string]any{"quantity": v.Quantity.String()}
	case apiservercel.Quantity:
		return map[string]any{"quantity": v.Quantity.String()}
	case apiservercel.Semver:
		return map[string]any{"semver": v.Version.String()}
	case apiservercel.IP:
		return map[string]any{"ip": v.Addr.String()}
	case apiservercel.CIDR:
		return map[string]any{"cidr": v.Prefix.String()}
	case apiservercel.URL:
		return map[string]any{"url": v.URL.String()}
	case apiservercel.Format:
		return map[string]any{"format": v.Name}
	case *apiservercel.Format:
		return map[string]any{"format": v.Name}
	case *types.Err:
		return map[string]any{"error": v.Error()}
	case *types.Unknown:
		return map[string]any{"unknown": v.String()}
	case traits.Lister:
		items := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			items = append(items, typed(it.Next()))
		}
		return map[string]any{"list": items}
	case traits.Mapper:
		type entry struct {
			key   string
			value []any
		}
		entries := []entry{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			entries = append(entries, entry{
				fmt.Sprintf("%s %v", key.Type().TypeName(), key.Value()),
				[]any{typed(key), typed(v.Get(key))},
			})
		}
		sort.Slice(entries, func(i, j int) bool { return entries[i].key < entries[j].key })
		items := make([]any, len(entries))
		for i, e := range entries {
			items[i] = e.value
		}
		return map[string]any{"map": items}
	default:
		return map[string]any{"other": fmt.Sprintf("%T %v", v, v.Value())}
	}
}

func double(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
