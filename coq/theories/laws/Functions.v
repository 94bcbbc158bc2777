(** * Functions of sums of products

    A function of a sum with a truth value in it is one of two values, chosen by the truth value.  What then
    is known of functions is their sign, and the order of values of which the greatest is taken. *)

From Coq Require Import List Bool ZArith QArith Qabs Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers.

#[local] Arguments Qred : simpl never.

Definition number (c : Q) : poly := if Qeq_bool c 0 then [] else [(c, [])].
Definition opposite (p : poly) : poly := pscale (-1) [] p.

(** ** Truth values *)
Fixpoint exponent (e : expr) (m : mono) : Q :=
  match m with [] => 0 | (f, q) :: m => if same e f then q else exponent e m end.
Fixpoint without (e : expr) (m : mono) : mono :=
  match m with [] => [] | (f, q) :: m => if same e f then m else (f, q) :: without e m end.
Fixpoint when_true (e : expr) (p : poly) : poly :=
  match p with [] => [] | (c, m) :: p => plus c (without e m) (when_true e p) end.
Fixpoint when_false (e : expr) (p : poly) : poly :=
  match p with
  | [] => []
  | (c, m) :: p => if Qeq_bool (exponent e m) 0 then (c, m) :: when_false e p else when_false e p
  end.
Definition is_truth (f : factor) : bool := match fst f with Fn f _ => truth f | _ => false end.
Definition first_truth (p : poly) : option factor := find is_truth (flat_map snd p).
Fixpoint by_cases (fuel : nat) (f : poly -> poly) (p : poly) : poly :=
  match fuel, first_truth p with
  | S fuel, Some (e, _) =>
      let no := by_cases fuel f (when_false e p) in
      padd no (pmul (atom e) (padd (by_cases fuel f (when_true e p)) (opposite no)))
  | _, _ => f p
  end.
Definition most_cases : nat := 6.

(** ** Signs *)
Fixpoint integral (e : expr) : bool :=
  match e with
  | Num k => whole k
  | Size _ | Var _ => true
  | Add a b | Mul a b => integral a && integral b
  | Pow a q => integral a && whole q && Qle_bool 0 q
  | _ => false
  end.
Definition constant (p : poly) : Q := match p with (c, []) :: _ => c | _ => 0 end.
Definition leading (p : poly) : Q := match p with (c, _) :: _ => c | [] => 0 end.

Fixpoint reified (ps : list poly) : expr :=
  match ps with [] => Nil | p :: ps => Cons (reify p) (reified ps) end.
Definition held (f : Z) (ps : list poly) : poly := atom (Fn f (reified ps)).

(** Of a whole number and its opposite, one is above zero: the one without a positive number is written. *)
Definition is_above (p : poly) : poly :=
  if positive (reify p) then number 1
  else if nonneg (reify (opposite p)) then []
  else if integral (reify p) then
    if Qle_bool (constant p) 0 then held 0 [p]
    else padd (number 1) (opposite (held 0 [padd (number 1) (opposite p)]))
  else if Qeq_bool (leading p) 0 then held 0 [p]
  else held 0 [pscale (Qabs (/ leading p)) [] p].
Definition is_nothing (p : poly) : poly :=
  match p with
  | [] => number 1
  | _ => if positive (reify p) || positive (reify (opposite p)) then [] else held 1 [p]
  end.
Definition signed (f : Z) (p : poly) : poly :=
  if Qle_bool 0 (leading p) then held f [p]
  else if odd f then opposite (held f [opposite p]) else held f [opposite p].

(** ** The greatest of some values: in order, each once, and of numbers one *)
Fixpoint compared (e : expr) : list expr :=
  match e with
  | Fn f (Cons a (Cons b Nil)) => if Z.eqb f greater then compared a ++ compared b else [e]
  | _ => [e]
  end.
Fixpoint placed_in (e : expr) (l : list expr) : list expr :=
  match l with
  | [] => [e]
  | d :: l' =>
      match e, d with
      | Num a, Num b => (if Qle_bool a b then d else e) :: l'
      | _, _ => match cmp e d with Eq => l | Lt => e :: l | Gt => d :: placed_in e l' end
      end
  end.
Fixpoint greatest_of (e : expr) (l : list expr) : expr :=
  match l with [] => e | d :: l => Fn greater (Cons e (Cons (greatest_of d l) Nil)) end.
Definition pgreater (p q : poly) : poly :=
  match fold_right placed_in [] (compared (reify p) ++ compared (reify q)) with
  | [] => held greater [p; q]
  | [Num k] => number k
  | e :: l => if same (greatest_of e l) (reify p) then p else atom (greatest_of e l)
  end.

(** ** All functions, of arguments that are polynomials *)
Definition direct (f : Z) (ps : list poly) : poly :=
  match ps with
  | [p] =>
      if Z.eqb f 0 then is_above p
      else if Z.eqb f 1 then is_nothing p
      else if odd f || symmetric f then signed f p
      else held f ps
  | [p; q] => if Z.eqb f greater then pgreater p q else held f ps
  | _ => held f ps
  end.
Fixpoint each_case (f : list poly -> poly) (before ps : list poly) : poly :=
  match ps with
  | [] => f before
  | p :: ps => by_cases most_cases (fun p => each_case f (before ++ [p]) ps) p
  end.
Definition function (f : Z) (ps : list poly) : poly :=
  if Z.eqb f log then match ps with [p] => plog p | _ => held f ps end
  else each_case (direct f) [] ps.

(** ** They denote what they should *)
Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den In).
Notation dens := (dens In).
Notation def := (def In).
Notation den_m := (den_m In).
Notation ok_m := (ok_m In).
Notation is_m := (is_m In).
Notation is_p := (is_p In).
Notation is_e := (is_e In).

Lemma number_is I c : is_p I (number c) (num c).
Proof.
  unfold number. destruct (Qeq_bool c 0) eqn:E.
  - rewrite (num_zero_bool _ E). now split.
  - split; cbn; auto. ring.
Qed.
Lemma one_is I : is_p I (number 1) one.
Proof. rewrite <- num_1. apply number_is. Qed.
Lemma num_minus : num (-1) = opp (one : A).
Proof. rewrite <- num_1. apply (num_opp 1). Qed.
Lemma opposite_is I p x : is_p I p x -> is_p I (opposite p) (opp x).
Proof.
  intros P. replace (opp x) with (mul (mul (num (-1)) one) x) by (rewrite num_minus; ring).
  apply pscale_is; [now split | exact P].
Qed.

(** *** Cases *)
Lemma exponent_is I e m : ok_m I m -> ok (den I e) (exponent e m) /\ ok_m I (without e m) /\
  den_m I m = mul (pw (den I e) (exponent e m)) (den_m I (without e m)).
Proof.
  induction m as [| [f q] m IH]; cbn [exponent without]; intros O.
  - split; [apply ok_0 | split; [exact Logic.I |]]. rewrite pw_0. cbn. ring.
  - destruct O as [[D K] O]. destruct (same e f) eqn:E.
    + apply same_eq in E as <-. auto.
    + destruct (IH O) as (K' & O' & S). split; auto. split; [cbn; auto |]. cbn. rewrite S. ring.
Qed.
Lemma when_true_is I e p x : is_p I p x -> den I e = one -> is_p I (when_true e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (exponent_is I e m Om) as (_ & Ow & S). rewrite E, pw_one in S.
  cbn [when_true]. change (is_p I (plus c (without e m) (when_true e p)) (add (mul (num c) (den_m I m)) (den_p In I p))).
  apply plus_is; [split; [exact Ow |] | now apply IH]. rewrite S. ring.
Qed.
Lemma when_false_is I e p x : is_p I p x -> den I e = zero -> is_p I (when_false e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (IH O) as [O' S']. cbn [when_false]. destruct (Qeq_bool (exponent e m) 0) eqn:Z.
  - split; [now split |]. cbn. now rewrite S'.
  - destruct (exponent_is I e m Om) as (K & _ & S). rewrite E in K, S. apply Qeq_bool_neq in Z.
    assert (P : 0 < exponent e m).
    { destruct (Qlt_le_dec 0 (exponent e m)) as [| L]; auto. exfalso. apply Qle_lteq in L as [L | L]; auto.
      now apply K in L. }
    split; [exact O' |]. rewrite S', (pw_zero A _ P) in *. cbn. rewrite S. ring.
Qed.
Lemma first_truth_is I p x e q : is_p I p x -> first_truth p = Some (e, q) ->
  def I e /\ (den I e = zero \/ den I e = one).
Proof.
  intros P F. apply find_some in F as [M T]. unfold is_truth in T. cbn in T.
  assert (D : def I e).
  { pose proof (ok_candidates In I p x P) as O. clear P T. induction (flat_map snd p) as [| [f r] m IH]; [easy |].
    destruct O as [[D _] O]. destruct M as [[= -> ->] | M]; auto. }
  split; [exact D |]. destruct e; try discriminate. now apply fn_truth.
Qed.
Lemma by_cases_is I (f : poly -> poly) (g : A -> A) : (forall p x, is_p I p x -> is_p I (f p) (g x)) ->
  forall fuel p x, is_p I p x -> is_p I (by_cases fuel f p) (g x).
Proof.
  intros H. induction fuel as [| fuel IH]; intros p x P; cbn [by_cases]; [now apply H |].
  destruct (first_truth p) as [[e q] |] eqn:F; [| now apply H].
  destruct (first_truth_is I p x e q P F) as [D T]. set (yes := when_true e p). set (no := when_false e p).
  assert (Any : forall p, ok_p In I p -> is_p I p (den_p In I p)) by now split.
  assert (Oy : ok_p In I yes).
  { unfold yes. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_true]. destruct (exponent_is I e m Om) as (_ & Ow & _).
    exact (proj1 (plus_is In I c _ _ _ _ (conj Ow eq_refl) (conj (IH O) eq_refl))). }
  assert (On : ok_p In I no).
  { unfold no. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_false]. destruct (Qeq_bool _ 0); [split |]; auto. }
  assert (Sum : forall y n, is_p I (by_cases fuel f yes) y -> is_p I (by_cases fuel f no) n ->
    is_p I (padd (by_cases fuel f no) (pmul (atom e) (padd (by_cases fuel f yes) (opposite (by_cases fuel f no)))))
      (add n (mul (den I e) (add y (opp n))))).
  { intros y n Y N. apply padd_is; [exact N |]. apply pmul_is; [now apply atom_is |].
    apply padd_is; [exact Y | now apply opposite_is]. }
  destruct T as [T | T].
  - pose proof (Sum _ _ (IH _ _ (Any _ Oy)) (IH _ _ (when_false_is I e p x P T))) as S. rewrite T in S.
    replace (g x) with (add (g x) (mul zero (add (g (den_p In I yes)) (opp (g x))))) by ring. exact S.
  - pose proof (Sum _ _ (IH _ _ (when_true_is I e p x P T)) (IH _ _ (Any _ On))) as S. rewrite T in S.
    replace (g x) with (add (g (den_p In I no)) (mul one (add (g x) (opp (g (den_p In I no)))))) by ring. exact S.
Qed.

(** *** Signs *)
Lemma integral_is I e : integral e = true -> def I e -> exists z, den I e = num (inject_Z z).
Proof.
  induction e; cbn; try discriminate; intros H D.
  - exists (whole_of q). apply num_eq. now apply whole_of_spec.
  - now eexists.
  - destruct D as [i ->]. now exists (Z.of_nat i).
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [y ->], (IHe2 H' D') as [z ->]. exists (y + z)%Z. now rewrite inject_Z_plus, num_plus.
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [y ->], (IHe2 H' D') as [z ->]. exists (y * z)%Z. now rewrite inject_Z_mult, num_mult.
  - apply andb_prop in H as [H L]. apply andb_prop in H as [H W]. apply Qle_bool_iff in L. destruct D as [D _].
    destruct (IHe H D) as [z ->]. rewrite (pw_eq A _ _ _ (whole_of_spec q W)).
    assert (N : (0 <= whole_of q)%Z) by (rewrite Zle_Qle; now rewrite <- (whole_of_spec q W)).
    rewrite <- (Z2Nat.id _ N), pw_num_nat. exists (z ^ Z.of_nat (Z.to_nat (whole_of q)))%Z. apply num_eq.
    symmetry. apply Qpower.Zpower_Qpower. lia.
Qed.
Lemma held_is I f ps xs : Forall2 (is_p I) ps xs -> defined f xs -> is_p I (held f ps) (fn f xs).
Proof.
  intros H K. assert (R : def I (reified ps) /\ dens I (reified ps) = xs).
  { clear K. induction H as [| p x ps xs P _ [D E]]; [now split |]. destruct (reify_is In I p x P) as [D' E'].
    split; [now split | cbn; now rewrite <- E', <- E]. }
  destruct R as [D E]. rewrite <- E in K |- *. apply (atom_is In I (Fn f (reified ps))). now split.
Qed.
Lemma held_one I f p x : f <> log -> is_p I p x -> is_p I (held f [p]) (fn f [x]).
Proof. intros N P. apply held_is; [auto | now intros E]. Qed.
Lemma above_whole z : fn 0 [num (inject_Z z) : A] = if Z.ltb 0 z then one else zero.
Proof.
  destruct (Z.ltb_spec 0 z) as [L | L].
  - assert (P : above (num (inject_Z z) : A)) by (apply above_num; change 0 with (inject_Z 0); now rewrite <- Zlt_Qlt).
    apply fn_positive; apply P.
  - replace (num (inject_Z z)) with (opp (num (inject_Z (- z))) : A).
    + apply fn_not_positive, num_nn. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia.
    + rewrite <- num_opp. apply num_eq. now rewrite <- inject_Z_opp, Z.opp_involutive.
Qed.
Lemma is_above_is I p x : is_p I p x -> is_p I (is_above p) (fn 0 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. pose proof (held_one I 0 p x ltac:(discriminate) P) as H.
  destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E']. unfold is_above.
  destruct (positive (reify p)) eqn:C.
  { pose proof (positive_is In _ I C D) as S. rewrite E in S. rewrite fn_positive by apply S. apply one_is. }
  destruct (nonneg (reify (opposite p))) eqn:N.
  { pose proof (nonneg_is In _ I N D') as S. rewrite E' in S. replace x with (opp (opp x)) by ring.
    rewrite fn_not_positive by exact S. now split. }
  destruct (integral (reify p)) eqn:W.
  - destruct (Qle_bool (constant p) 0); [exact H |].
    destruct (integral_is I _ W D) as [z Z]. rewrite E in Z. clear D E D' E' H. subst x.
    set (y := num (inject_Z z)) in *. replace (fn 0 [y]) with (add one (opp (fn 0 [add one (opp y)]))).
    + apply padd_is; [apply one_is |]. apply opposite_is, held_one; [discriminate |].
      apply padd_is; [apply one_is | now apply opposite_is].
    + replace (add one (opp y)) with (num (inject_Z (1 - z)) : A).
      * unfold y. rewrite !above_whole. destruct (Z.ltb_spec 0 z), (Z.ltb_spec 0 (1 - z)); try lia; ring.
      * unfold y. rewrite <- num_opp, <- num_1, <- num_plus. apply num_eq.
        unfold Z.sub. now rewrite inject_Z_plus, inject_Z_opp.
  - destruct (Qeq_bool (leading p) 0) eqn:L; [exact H |]. apply Qeq_bool_neq in L.
    assert (K : 0 < Qabs (/ leading p)).
    { destruct (Qlt_le_dec 0 (Qabs (/ leading p))) as [| K]; auto. exfalso. apply L.
      assert (Z : Qabs (/ leading p) == 0) by (apply Qle_antisym; [exact K | apply Qabs_nonneg]).
      rewrite <- (Qinv_involutive (leading p)). destruct (Qlt_le_dec (/ leading p) 0) as [G | G].
      - rewrite Qabs_neg in Z by now apply Qlt_le_weak. rewrite <- (Qopp_involutive (/ leading p)), Z. reflexivity.
      - rewrite Qabs_pos in Z by assumption. rewrite Z. reflexivity. }
    rewrite <- (fn_scaled A _ x K). apply held_one; [discriminate |].
    replace (mul (num (Qabs (/ leading p))) x) with (mul (mul (num (Qabs (/ leading p))) one) x) by ring.
    apply pscale_is; [now split | exact P].
Qed.
Lemma opp_apart (x : A) : opp x <> zero -> x <> zero.
Proof. intros N ->. apply N. ring. Qed.
Lemma is_nothing_is I p x : is_p I p x -> is_p I (is_nothing p) (fn 1 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E'].
  unfold is_nothing. destruct p as [| t p].
  - destruct P as [_ <-]. cbn. rewrite fn_of_zero. apply one_is.
  - destruct (_ || _) eqn:C; [| apply held_one; [discriminate | exact P]].
    rewrite fn_zero; [now split |]. apply orb_prop in C as [C | C].
    + pose proof (positive_is In _ I C D) as S. rewrite E in S. apply S.
    + pose proof (positive_is In _ I C D') as S. rewrite E' in S. apply opp_apart, S.
Qed.
Lemma signed_is I f p x : odd f || symmetric f = true -> is_p I p x -> is_p I (signed f p) (fn f [x]).
Proof.
  intros S P. assert (N : f <> log) by (intros ->; discriminate). unfold signed.
  destruct (Qle_bool 0 (leading p)); [now apply held_one |].
  replace x with (opp (opp x)) by ring. destruct (odd f) eqn:O.
  - rewrite fn_odd by assumption. apply opposite_is, held_one; [exact N | now apply opposite_is].
  - rewrite fn_symmetric by assumption. apply held_one; [exact N | now apply opposite_is].
Qed.

(** *** The greatest of some values *)
Definition larger (x y : A) : A := fn greater [x; y].
Lemma larger_same x : larger x x = x.
Proof. apply greater_above. replace (sub x x) with (num 0 : A) by (rewrite num_0; ring). now apply num_nn. Qed.
Lemma larger_joined x y z : larger (larger x y) z = larger x (larger y z).
Proof. apply greater_joined. Qed.
Lemma larger_swap x y : larger x y = larger y x.
Proof. apply greater_swap. Qed.
Lemma larger_twice x y : larger x (larger x y) = larger x y.
Proof. now rewrite <- larger_joined, larger_same. Qed.
Lemma larger_num a b : a <= b -> larger (num a) (num b) = (num b : A).
Proof.
  intros L. apply greater_above. replace (sub (num b) (num a)) with (num (b - a) : A).
  - apply num_nn. now apply (proj1 (Qle_minus_iff a b)).
  - unfold Qminus. rewrite num_plus, num_opp. ring.
Qed.

Definition join (x y : option A) : option A :=
  match x, y with
  | Some x, Some y => Some (larger x y)
  | Some x, None | None, Some x => Some x
  | None, None => None
  end.
Lemma join_joined x y z : join (join x y) z = join x (join y z).
Proof. destruct x, y, z; cbn; auto. now rewrite larger_joined. Qed.
Lemma join_swap x y : join x y = join y x.
Proof. destruct x, y; cbn; auto. now rewrite larger_swap. Qed.
Lemma join_twice x y : join (Some x) (join (Some x) y) = join (Some x) y.
Proof. rewrite <- join_joined. cbn. now rewrite larger_same. Qed.
Fixpoint top I (l : list expr) : option A :=
  match l with [] => None | e :: l => join (Some (den I e)) (top I l) end.
Lemma top_app I l k : top I (l ++ k) = join (top I l) (top I k).
Proof. induction l as [| e l IH]; [cbn; now destruct (top I k) |]. cbn [top app]. now rewrite IH, join_joined. Qed.

Lemma compared_is I e : def I e -> Forall (def I) (compared e) /\ top I (compared e) = Some (den I e).
Proof.
  assert (One : forall e, def I e -> Forall (def I) [e] /\ top I [e] = Some (den I e)) by (cbn; auto).
  assert (H : forall e, (def I e -> Forall (def I) (compared e) /\ top I (compared e) = Some (den I e)) /\
    match e with
    | Cons b Nil => def I b -> Forall (def I) (compared b) /\ top I (compared b) = Some (den I b)
    | Cons a (Cons b Nil) =>
        def I a /\ def I b -> Forall (def I) (compared a ++ compared b) /\
          top I (compared a ++ compared b) = Some (larger (den I a) (den I b))
    | _ => True
    end).
  { clear e. induction e; (split; [try apply One | try exact Logic.I]).
    - destruct e2; try exact Logic.I; [apply IHe1 |]. destruct e2_2; try exact Logic.I. intros [D D'].
      destruct (proj1 IHe1 D) as [F S], (proj2 IHe2 D') as [F' S']. split; [now apply Forall_app |].
      now rewrite top_app, S, S'.
    - intros D. cbn [compared]. destruct e; try now apply One. destruct e2; try now apply One.
      destruct e2_2; try now apply One. destruct (Z.eqb_spec f greater) as [-> |]; [| now apply One].
      apply IHe. destruct D as [(D & D' & _) _]. now split. }
  apply H.
Qed.
Lemma placed_in_is I e l : def I e -> Forall (def I) l ->
  Forall (def I) (placed_in e l) /\ top I (placed_in e l) = join (Some (den I e)) (top I l).
Proof.
  intros D. induction 1 as [| d l Dd F IH]; [cbn; auto |].
  assert (Ordered : let r := match cmp e d with Eq => d :: l | Lt => e :: d :: l | Gt => d :: placed_in e l end in
    Forall (def I) r /\ top I r = join (Some (den I e)) (top I (d :: l))).
  { cbv zeta. destruct (cmp e d) eqn:C; [| split; auto |].
    - apply cmp_eq in C as <-. split; auto. cbn [top]. now rewrite join_twice.
    - destruct IH as [F' S]. split; auto. cbn [top]. rewrite S, <- !join_joined.
      now rewrite (join_swap (Some (den I d))). }
  destruct e as [a | | | | | | | | | | | |]; try exact Ordered.
  destruct d as [b | | | | | | | | | | | |]; try exact Ordered. clear Ordered. cbn [placed_in top].
  rewrite <- join_joined. cbn [join Expressions.den]. destruct (Qle_bool a b) eqn:L.
  - apply Qle_bool_iff in L. rewrite larger_num by exact L. split; auto.
  - assert (G : b <= a).
    { destruct (Qlt_le_dec b a) as [G | G]; [now apply Qlt_le_weak |]. apply Qle_bool_iff in G. congruence. }
    rewrite larger_swap, larger_num by exact G. split; auto.
Qed.
Lemma greatest_of_is I e l : def I e -> Forall (def I) l ->
  def I (greatest_of e l) /\ Some (den I (greatest_of e l)) = top I (e :: l).
Proof.
  intros D F. revert e D. induction F as [| d l Dd F IH]; intros e D; [cbn; auto |].
  destruct (IH d Dd) as [D' S]. split; [cbn; repeat split; auto; discriminate |].
  change (Some (larger (den I e) (den I (greatest_of d l))) = join (Some (den I e)) (top I (d :: l))).
  now rewrite <- S.
Qed.
Lemma pgreater_is I p q x y : is_p I p x -> is_p I q y -> is_p I (pgreater p q) (fn greater [x; y]).
Proof.
  intros P Q. assert (Held : is_p I (held greater [p; q]) (fn greater [x; y])) by (apply held_is; [auto | exact Logic.I]).
  destruct (reify_is In I p x P) as [Dp Ep], (reify_is In I q y Q) as [Dq Eq].
  destruct (compared_is I _ Dp) as [Fp Sp], (compared_is I _ Dq) as [Fq Sq]. unfold pgreater.
  set (l := compared (reify p) ++ compared (reify q)).
  assert (L : Forall (def I) l /\ top I l = Some (larger x y)).
  { split; [now apply Forall_app |]. unfold l. now rewrite top_app, Sp, Sq, Ep, Eq. }
  assert (R : Forall (def I) (fold_right placed_in [] l) /\ top I (fold_right placed_in [] l) = top I l).
  { destruct L as [F _]. clear - F. induction F as [| e l D F [F' S]]; [cbn; auto |]. cbn [fold_right top].
    rewrite <- S. now apply placed_in_is. }
  destruct L as [_ L], R as [F R]. rewrite L in R. destruct (fold_right placed_in [] l) as [| e k]; [exact Held |].
  assert (General : is_p I (if same (greatest_of e k) (reify p) then p else atom (greatest_of e k)) (fn greater [x; y])).
  { destruct (greatest_of_is I e k (Forall_inv F) (Forall_inv_tail F)) as [D S].
    rewrite R in S. injection S as S. change (fn greater [x; y]) with (larger x y). rewrite <- S.
    destruct (same _ _) eqn:E; [| now apply atom_is]. apply same_eq in E. rewrite E, Ep. exact P. }
  destruct e; try exact General. destruct k; try exact General.
  cbn in R. injection R as R. change (fn greater [x; y]) with (larger x y). rewrite <- R. apply number_is.
Qed.

(** *** All functions *)
Lemma direct_is I f ps xs : f <> log -> Forall2 (is_p I) ps xs -> is_p I (direct f ps) (fn f xs).
Proof.
  intros N H. assert (Held : is_p I (held f ps) (fn f xs)).
  { apply held_is; [exact H |]. destruct xs as [| x [| y xs]]; cbn; auto. contradiction. }
  destruct H as [| p x ps xs P [| q y ps' xs' Q [| r z ps'' xs'' R]]]; cbn [direct]; try exact Held.
  - destruct (Z.eqb_spec f 0) as [-> |]; [now apply is_above_is |].
    destruct (Z.eqb_spec f 1) as [-> |]; [now apply is_nothing_is |].
    destruct (odd f || symmetric f) eqn:S; [now apply signed_is | exact Held].
  - destruct (Z.eqb_spec f greater) as [-> |]; [now apply pgreater_is | exact Held].
Qed.
Lemma each_case_is I (f : list poly -> poly) (g : list A -> A) :
  (forall ps xs, Forall2 (is_p I) ps xs -> is_p I (f ps) (g xs)) ->
  forall ps xs before ys, Forall2 (is_p I) before ys -> Forall2 (is_p I) ps xs ->
  is_p I (each_case f before ps) (g (ys ++ xs)).
Proof.
  intros H. induction ps as [| p ps IH]; intros xs before ys B P; inversion P as [| p' x ps' xs' Px Ps]; subst; cbn [each_case].
  - rewrite app_nil_r. now apply H.
  - apply (by_cases_is I _ (fun x => g (ys ++ x :: xs'))); [| exact Px]. clear p x Px P. intros p x Px.
    replace (ys ++ x :: xs') with ((ys ++ [x]) ++ xs') by now rewrite <- app_assoc.
    apply IH; [| exact Ps]. now apply Forall2_app; [| constructor].
Qed.
Lemma function_is I f ps xs : defined f xs -> Forall2 (is_p I) ps xs -> is_p I (function f ps) (fn f xs).
Proof.
  intros D H. unfold function. destruct (Z.eqb_spec f log) as [-> | N].
  - destruct H as [| p x ps xs P [| q y ps' xs' Q H]]; [apply held_is; auto | | apply held_is; auto].
    apply plog_is; [exact P | now apply D].
  - apply (each_case_is I (direct f) (fn f)) with (before := []) (ys := []); auto.
    intros. now apply direct_is.
Qed.
End Denotation.
