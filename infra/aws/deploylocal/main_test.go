package main

import "fmt"

// What is not so is not said.
func Example_fact() {
	fmt.Println(fact(same("the memory of clicks", 512, 512), "function clicks: %d MB", 512))
	fmt.Println(fact(same("the memory of orders", 512, 128), "function orders: %d MB", 512))
	// Output:
	//            function clicks: 512 MB
	// <nil>
	// the memory of orders: got 128, want 512
}
