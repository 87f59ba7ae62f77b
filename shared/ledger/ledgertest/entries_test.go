package ledgertest

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// A field added to delivery.Entry must be added to Full and to Entries, or the
// suite would not notice a ledger that loses it.
func TestFullHasEveryField(t *testing.T) {
	filled(t, "Entry", reflect.ValueOf(Full()))
}

func filled(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	require.False(t, v.IsZero(), "%s is not set", path)
	switch v.Kind() {
	case reflect.Pointer:
		filled(t, path, v.Elem())
	case reflect.Struct:
		if v.Type().PkgPath() == "time" {
			return
		}
		for i := range v.NumField() {
			filled(t, fmt.Sprintf("%s.%s", path, v.Type().Field(i).Name), v.Field(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			filled(t, fmt.Sprintf("%s[%s]", path, k), v.MapIndex(k))
		}
	case reflect.Slice:
		filled(t, path+"[0]", v.Index(v.Len()-1))
	default:
	}
}
