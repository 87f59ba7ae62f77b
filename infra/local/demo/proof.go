package demo

import (
	"encoding/json"

	"oncehouse/infra/local/oracle"
	"oncehouse/shared/delivery"
)

// Proof is what one run came to.
type Proof struct {
	Guarantee delivery.Guarantee `json:"guarantee"`
	oracle.Count
	Kills   int64   `json:"kills"`
	Recuts  int64   `json:"recuts"`
	Seconds float64 `json:"seconds"`
}

// String is the line that scripts look for.
func (p Proof) String() string {
	line, err := json.Marshal(p)
	if err != nil { // numbers and a string always marshal
		panic(err)
	}
	return "PROOF " + string(line)
}
