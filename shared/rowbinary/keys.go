package rowbinary

import (
	"bytes"
	"cmp"
	"slices"
)

// fewKeys is up to how many keys are compared pair by pair.
const fewKeys = 16

// distinct checks that the keys from first on differ, and forgets them. Equal
// hashes are compared byte by byte; many keys are sorted, so that no choice of
// keys makes it slow.
func (w *Writer) distinct(first int) bool {
	keys := w.keys[first:]
	w.keys = w.keys[:first]
	if len(keys) > fewKeys {
		return w.distinctMany(keys)
	}
	var seen uint64 // one bit of each hash: most keys need no comparison
	for i := range keys {
		bit := uint64(1) << (keys[i].hash & 63)
		if seen&bit == 0 {
			seen |= bit
			continue
		}
		for j := range i {
			if keys[i].hash == keys[j].hash && bytes.Equal(w.keyText(keys[i]), w.keyText(keys[j])) {
				return w.duplicate(keys[i])
			}
		}
	}
	return true
}

func (w *Writer) distinctMany(keys []keyRef) bool {
	slices.SortFunc(keys, func(a, b keyRef) int {
		if c := cmp.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		return bytes.Compare(w.keyText(a), w.keyText(b))
	})
	for i := 1; i < len(keys); i++ {
		if keys[i].hash == keys[i-1].hash && bytes.Equal(w.keyText(keys[i]), w.keyText(keys[i-1])) {
			return w.duplicate(keys[i])
		}
	}
	return true
}

func (w *Writer) duplicate(k keyRef) bool {
	w.bad = Refusal{Code: CodeDuplicateKey, Message: "the key " + excerpt(w.keyText(k)) + " is given twice"}
	return false
}
